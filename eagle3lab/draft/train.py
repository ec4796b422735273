"""Training of the drafter: a generator of metric rows that can be cut off anywhere and goes on.

Shapes: K TTT steps, W draft vocabulary, V target vocabulary, H hidden.

The weights are float32; a working copy in the compute dtype is refreshed once per optimizer step, so no call pays for a
cast (autocast would cast every weight at every TTT step).
"""

import copy
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from eagle3lab.draft.batch import make_batch, slot_mask
from eagle3lab.draft.model import DraftConfig, Eagle3Draft
from eagle3lab.draft.order import training_plan
from eagle3lab.draft.recipe import Recipe, build_optimizers, schedule
from eagle3lab.draft.state import load_state, save_state
from eagle3lab.draft.target_weights import TargetWeights
from eagle3lab.draft.ttt import ttt_loss
from eagle3lab.draft.vocab import VocabMap


class TrainingDiverged(RuntimeError):
    """The loss or the gradient is not finite. The batch is saved for inspection."""


@torch.no_grad()
def warm_start(draft, target_head_VH: torch.Tensor, target_norm_H: torch.Tensor) -> None:
    """Starts head and final norm from the target's own, where the widths agree.

    The block and `fc` stay random: passing the last aux state through and muting the block was tried and lost
    (dev/LOG.md).
    """
    if target_head_VH.shape[1] == draft.config.hidden_size:
        draft.lm_head.weight.copy_(target_head_VH[draft.target_ids_W].to(draft.lm_head.weight.dtype))
        draft.norm.weight.copy_(target_norm_H)


def new_draft(target_folder: str | Path, aux_layers, vocab: VocabMap, weights: TargetWeights, seed: int) -> Eagle3Draft:
    """An untrained drafter of a target: random matrices of that seed, warm-started from the target's own weights."""
    target_config = AutoConfig.from_pretrained(target_folder)
    config = DraftConfig.for_target(target_config, tuple(aux_layers), vocab.size)
    draft = Eagle3Draft(config, weights.embed_VH, vocab.target_ids_W)
    draft.reset(torch.Generator().manual_seed(seed))
    warm_start(draft, weights.head_VH, weights.norm_H)
    return draft


def trainable_lengths(store, split: str, recipe: Recipe) -> dict[str, int]:
    """Row id -> tokens of the rows of a split that have a slot to train under the recipe's mask."""
    lengths = {}
    for row_id in store.ids:
        entry = store.index(row_id)
        if entry["split"] != split:
            continue
        mask_T = torch.zeros(entry["n"], dtype=torch.bool)
        for start, end in entry["loss_spans"]:
            mask_T[start:end] = True
        if bool(slot_mask(mask_T, 0, recipe.loss_mask_kind).any()):
            lengths[row_id] = entry["n"]
    if not lengths:
        raise ValueError(f"no row of split {split!r} has a slot to train: are all loss masks empty?")
    return lengths


class Trainer:
    """One training of one drafter.

    draft: float32 weights, changed in place. rows: a mapping of row id -> feature row (a FeatureStore's `row` behind
    `lengths`). target_head_VH: the target's output matrix, whose rows of the draft vocabulary make the teacher.
    folder: checkpoints go there; an unfinished training of the same identity continues from its newest one.
    """

    def __init__(
        self, draft, lengths: Mapping[str, int], read_row, target_head_VH, recipe: Recipe, folder, identity=None
    ):
        self.draft, self.read_row, self.recipe, self.folder = draft, read_row, recipe, Path(folder)
        self.plan = training_plan(lengths, recipe.batch_tokens, recipe.accumulate, recipe.epochs, recipe.seed)
        self.dtype = getattr(torch, recipe.compute_dtype)
        self.work = draft if self.dtype == torch.float32 else copy.deepcopy(draft).to(self.dtype)
        self.teacher_head_WH = target_head_VH[draft.target_ids_W].to(self.dtype).contiguous()
        self.draft_id_V = VocabMap(draft.target_ids_W, draft.config.vocab_size).draft_ids()
        self.optimizers = build_optimizers(draft, recipe)
        self.identity = {
            "recipe": recipe.to_dict(),
            "draft": draft.config.to_dict(),
            "steps": len(self.plan),
            "rows": len(lengths),
            **(identity or {}),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        self.step = load_state(self.folder, draft, self.optimizers, self.identity)
        self._refresh()

    @property
    def total_steps(self) -> int:
        return len(self.plan)

    def run(self, checkpoint_every: int = 100, log_every: int = 10) -> Iterator[dict]:
        """Trains to the end of the plan, yielding a row every `log_every` steps and at the end:

        step, loss, grad_norm, lr, tokens (slots read since the start of this process), tokens_per_second, seconds,
        acceptance (marginal share of right drafts per TTT step on the batch just trained, list of K).
        """
        started, slots, slots_then = time.perf_counter(), 0, 0
        then = started
        while self.step < self.total_steps:
            log = (self.step + 1) % log_every == 0 or self.step + 1 == self.total_steps
            row = self._optimize(self.plan[self.step], measure=log)
            slots += row.pop("slots")
            self.step += 1
            if self.step % checkpoint_every == 0 or self.step == self.total_steps:
                save_state(self.folder, self.draft, self.optimizers, self.step, self.identity)
            if log:
                now = time.perf_counter()
                rate, then, slots_then = (slots - slots_then) / (now - then), now, slots
                yield {
                    "step": self.step,
                    "steps": self.total_steps,
                    **row,
                    "tokens": slots,
                    "tokens_per_second": rate,
                    "seconds": now - started,
                }

    def _optimize(self, micro_batches, measure: bool) -> dict:
        recipe = self.recipe
        batches = [
            make_batch([self.read_row(i) for i in ids], recipe.ttt_steps, recipe.loss_mask_kind)
            for ids in micro_batches
        ]
        if recipe.denominator == "valid":
            denominator_K = sum(batch.weight_KN.sum(1) for batch in batches).clamp(min=1)
        else:
            denominator_K = torch.full((recipe.ttt_steps,), float(sum(batch.row_S.numel() for batch in batches)))
        loss_sum, right_K = 0.0, torch.zeros(recipe.ttt_steps)
        for batch in batches:
            loss, correct_KN = ttt_loss(
                self.work,
                batch,
                self.teacher_head_WH,
                self.draft_id_V,
                recipe.step_weights(),
                denominator_K,
                recipe.lk_weight,
                recipe.drop_oov,
                measure,
            )
            loss.backward()
            loss_sum += loss.item()
            right_K += correct_KN.sum(1)
        factor = schedule(self.step, self.total_steps, recipe)
        grad_norm = self._apply(factor)
        if not (grad_norm < float("inf") and loss_sum == loss_sum):
            raise TrainingDiverged(self._save_batch(micro_batches, loss_sum, grad_norm))
        trained_K = sum(batch.weight_KN.sum(1) for batch in batches)
        row = {
            "slots": sum(batch.row_S.numel() for batch in batches),
            "loss": loss_sum,
            "grad_norm": grad_norm,
            "lr": recipe.lr * factor,
        }
        if measure:
            row["acceptance"] = (right_K / trained_K.clamp(min=1)).tolist()
        return row

    def _apply(self, factor: float) -> float:
        """Clips, steps, refreshes the working copy. A gradient that is not finite leaves the weights untouched."""
        if self.work is not self.draft:
            for parameter, working in zip(self.draft.parameters(), self.work.parameters(), strict=True):
                parameter.grad, working.grad = working.grad.float(), None
        norm = float(torch.nn.utils.clip_grad_norm_(self.draft.parameters(), self.recipe.clip_norm))
        if norm < float("inf"):
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["peak_lr"] * factor
                optimizer.step()
        for parameter in self.draft.parameters():
            parameter.grad = None
        self._refresh()
        return norm

    @torch.no_grad()
    def _refresh(self) -> None:
        if self.work is not self.draft:
            for parameter, working in zip(self.draft.parameters(), self.work.parameters(), strict=True):
                working.copy_(parameter)

    def _save_batch(self, micro_batches, loss: float, grad_norm: float) -> str:
        path = self.folder / f"diverged-step-{self.step:06d}.safetensors"
        rows = {f"{i}/aux": self.read_row(i).aux_TAH for ids in micro_batches for i in ids}
        save_file({name: tensor.contiguous() for name, tensor in rows.items()}, path)
        return (
            f"step {self.step}: loss {loss}, gradient norm {grad_norm}. The batch is in {path}, the last good weights "
            f"in {self.folder}. Lower lr={self.recipe.lr} / head_lr={self.recipe.head_lr}, or look for bad features."
        )
