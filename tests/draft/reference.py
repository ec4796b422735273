"""The obviously right version of training-time test: one slot, one step, one key at a time, in float64.

Nothing here is shared with the package but the weights.
"""

import math

import torch


def rms(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rope(x_HD, position, theta):
    half = x_HD.shape[-1] // 2
    out = x_HD.clone()
    for i in range(half):
        angle = position * theta ** (-i / half)
        cos, sin = math.cos(angle), math.sin(angle)
        out[:, i] = x_HD[:, i] * cos - x_HD[:, i + half] * sin
        out[:, i + half] = x_HD[:, i + half] * cos + x_HD[:, i] * sin
    return out


def qkv(w, c, f, token, position, embed):
    u = torch.cat(
        [
            rms(embed[token], w["midlayer.input_layernorm.weight"], c.rms_norm_eps),
            rms(f, w["midlayer.hidden_norm.weight"], c.rms_norm_eps),
        ]
    )
    q = (w["midlayer.self_attn.q_proj.weight"] @ u).view(c.num_attention_heads, c.head_dim)
    k = (w["midlayer.self_attn.k_proj.weight"] @ u).view(c.num_key_value_heads, c.head_dim)
    v = (w["midlayer.self_attn.v_proj.weight"] @ u).view(c.num_key_value_heads, c.head_dim)
    return rope(q, position, c.rope_theta), rope(k, position, c.rope_theta), v


def after(w, c, f, attended):
    if c.norm_before_residual:
        f = rms(f, w["midlayer.hidden_norm.weight"], c.rms_norm_eps)
    r = f + w["midlayer.self_attn.o_proj.weight"] @ attended.flatten()
    h = rms(r, w["midlayer.post_attention_layernorm.weight"], c.rms_norm_eps)
    gate, up = w["midlayer.mlp.gate_proj.weight"] @ h, w["midlayer.mlp.up_proj.weight"] @ h
    return r + w["midlayer.mlp.down_proj.weight"] @ (gate / (1 + torch.exp(-gate)) * up)


def attend(c, q, keys, values):
    out, group = [], c.num_attention_heads // c.num_key_value_heads
    for head in range(c.num_attention_heads):
        scores = torch.stack([q[head] @ k[head // group] for k in keys]) / math.sqrt(c.head_dim)
        p = torch.softmax(scores, 0)
        out.append(sum(p[j] * values[j][head // group] for j in range(len(keys))))
    return torch.stack(out)


def fuse(w, c, aux_AH):
    if c.norm_before_fc:
        aux_AH = rms(aux_AH.flatten(), w["input_norm.weight"], c.rms_norm_eps).view_as(aux_AH)
    if c.fc_norm:
        aux_AH = torch.stack([rms(x, w[f"fc_norm.{a}.weight"], c.rms_norm_eps) for a, x in enumerate(aux_AH)])
    return w["fc.weight"] @ aux_AH.flatten()


def row_logits(w, c, embed, ids, aux_TAH, steps):
    """{(slot, step): logits over the draft vocabulary} of one row, every slot whose tokens exist."""
    T = len(ids)
    f0 = [fuse(w, c, aux_TAH[t]) for t in range(T)]
    step0 = [qkv(w, c, f0[t], ids[t + 1], t, embed) for t in range(T - 1)]
    logits = {}
    for t in range(T - 2):
        f, extra_k, extra_v = f0[t], [], []
        for i in range(steps):
            if t + 1 + i >= T:
                break
            q, k, v = qkv(w, c, f, ids[t + 1 + i], t + i, embed)
            if i:
                extra_k.append(k)
                extra_v.append(v)
            keys = [step0[s][1] for s in range(t + 1)] + extra_k
            values = [step0[s][2] for s in range(t + 1)] + extra_v
            y = after(w, c, f, attend(c, q, keys, values))
            normed = rms(y, w["norm.weight"], c.rms_norm_eps)
            logits[t, i] = w["lm_head.weight"] @ normed
            f = normed if c.norm_output else y
    return logits


def trained(mask, t, i, kind, T):
    """Is slot t trained at step i (eagle3-facts: strict, shifted l_{t+1+i}, specforge l_{t+i})."""
    if t + 2 + i >= T:
        return False
    if kind == "strict":
        return all(mask[j] for j in range(t + 1, t + 3 + i))
    return bool(mask[t + 1 + i] if kind == "shifted" else mask[t + i])


def loss(w, c, embed, rows, recipe, teacher_head_VH, target_ids, last_of):
    """The loss of the rows as one batch. `last_of(row)[t]` is the post-norm last hidden state of x_t or None."""
    draft_id = {int(v): i for i, v in enumerate(target_ids)}
    sums, counts = [torch.zeros((), dtype=torch.float64)] * recipe.ttt_steps, [0] * recipe.ttt_steps
    slots = 0
    for row in rows:
        ids, mask, T = row.input_ids_T.tolist(), row.loss_mask_T.tolist(), row.input_ids_T.shape[0]
        logits, last = row_logits(w, c, embed, ids, row.aux_TAH.double(), recipe.ttt_steps), last_of(row)
        used = 0
        for t in range(T):
            for i in range(recipe.ttt_steps):
                if not trained(mask, t, i, recipe.loss_mask_kind, T) or last[t + 1 + i] is None:
                    continue
                counts[i] += 1
                used = max(used, t + 1)
                if recipe.drop_oov and ids[t + 2 + i] not in draft_id:
                    continue
                p = torch.softmax(teacher_head_VH[target_ids] @ last[t + 1 + i], 0)
                q = torch.softmax(logits[t, i], 0)
                cross, accept = -(p * torch.log(q)).sum(), torch.minimum(p, q).sum()
                lk = -torch.log(accept) if recipe.lk_form == "log" else 1 - accept
                sums[i] = sums[i] + (1 - recipe.lk_weight) * cross + recipe.lk_weight * lk
        slots += used
    denominators = counts if recipe.denominator == "valid" else [slots] * recipe.ttt_steps
    step_weights = recipe.step_weights or [recipe.step_decay**i for i in range(recipe.ttt_steps)]
    return sum(step_weights[i] * sums[i] / max(1, denominators[i]) for i in range(recipe.ttt_steps))
