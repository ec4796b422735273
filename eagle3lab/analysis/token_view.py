"""An answer as coloured, escaped, self-contained HTML: what was drafted and accepted, token by token.

Shapes: T tokens of a row, K draft steps, E best tokens of a step.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from eagle3lab.analysis.attribution import Walked
from eagle3lab.analysis.proposals import Proposals
from eagle3lab.analysis.token_text import token_pieces
from eagle3lab.draft.batch import predicted_token
from eagle3lab.draft.chain import first_slot

# Okabe-Ito colours with dark ink on them: told apart by the colour-blind, and on light and dark pages.
STYLES = {
    "prefill": "background:#DDDDDD;color:#000",
    "accepted": "background:#56B4E9;color:#000",
    "rejected": "background:#E69F00;color:#000",
    "bonus": "background:#F0E442;color:#000",
}
WORDS = {
    "prefill": "first token, from the prefill",
    "accepted": "drafted and accepted",
    "rejected": "the draft was wrong: the target's token instead",
    "bonus": "the target's own token after a whole chain, or at the answer's end",
}
MOST_TOKENS = 400


def token_kinds(answer: Walked, num_steps: int) -> list[tuple[str, int, int]]:
    """(kind, slot, step) of every token of the answer: which verification's chain names it, and at which step (K: after
    the chain). The prefill's token has slot and step -1. Where the answer's end cuts a chain, its last token counts as
    the bonus."""
    kinds, slot, end = [("prefill", -1, -1)], first_slot(answer.n_prompt), len(answer.input_ids_T)
    for accepted in answer.accepted:
        kinds += [("accepted", slot, step) for step in range(accepted)]
        stopped = accepted < min(num_steps, end - predicted_token(slot, 0) - 1)
        kinds.append(("rejected" if stopped else "bonus", slot, accepted))
        slot += accepted + 1
    return kinds


def token_html(
    answer: Walked, num_steps: int, tokenizer: Any, proposals: Proposals | None = None, most_tokens: int = MOST_TOKENS
) -> str:
    """HTML of one answer. Hover over a token: its draft position, and what the drafter would have said instead with its
    probabilities. A bar marks where a verification begins. Everything from the data is escaped; no script, no link."""
    ids = [int(i) for i in answer.input_ids_T[answer.n_prompt :]]
    pieces, kinds = token_pieces(tokenizer, ids), token_kinds(answer, num_steps)
    spans, previous = [], -1
    for piece, (kind, slot, step) in zip(pieces[:most_tokens], kinds, strict=False):
        border = ";border-left:2px solid #000" if slot != previous else ""
        previous = slot
        title = _title(kind, slot, step, num_steps, tokenizer, proposals)
        spans.append(f'<span style="{STYLES[kind]}{border}" title="{escape(title)}">{_shown(piece)}</span>')
    more = f" … {len(ids) - most_tokens} more tokens" if len(ids) > most_tokens else ""
    used = [kind for kind in STYLES if any(kind == one[0] for one in kinds)]
    legend = " ".join(f'<span style="{STYLES[kind]};padding:0 .5em">{WORDS[kind]}</span>' for kind in used)
    committed = len(ids) - 1
    head = (
        f"{answer.id} ({answer.set}): {committed} tokens in {len(answer.accepted)} verifications, accept length "
        f"{committed / len(answer.accepted):.2f}, chain {num_steps}"
        if answer.accepted
        else f"{answer.id} ({answer.set}): no verification"
    )
    return (
        f'<div style="font-family:monospace"><p>{escape(head)}</p><p>{legend}</p>'
        f'<div style="white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.7">{"".join(spans)}{more}</div></div>'
    )


def _shown(piece: str) -> str:
    """A token's text so that it can be seen: line ends marked, a part of a character as a dot."""
    return escape(piece).replace("\n", "⏎\n") if piece else "·"


def _title(kind: str, slot: int, step: int, num_steps: int, tokenizer, proposals: Proposals | None) -> str:
    if kind == "prefill":
        return WORDS[kind]
    place = f"draft {step + 1} of {num_steps}" if step < num_steps else f"after {num_steps} drafts"
    words = f"{place}: {WORDS[kind]}"
    if proposals is None or step >= num_steps or proposals.ids_TKE[slot, step, 0] < 0:
        return words
    best = zip(proposals.ids_TKE[slot, step].tolist(), proposals.p_TKE[slot, step].tolist(), strict=True)
    return f"{words}\ndrafter: " + ", ".join(f"{_name(tokenizer, token)} {p:.0%}" for token, p in best)


def _name(tokenizer, token: int) -> str:
    return repr(tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))


def answers_html(answers: Sequence[Walked], num_steps: int, tokenizer: Any, proposals: Sequence[Proposals] = ()) -> str:
    """A whole page of answers, to be saved as a file."""
    by_id = {one.id: one for one in proposals}
    parts = [token_html(answer, num_steps, tokenizer, by_id.get(answer.id)) for answer in answers]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Answers, token by token</title></head>'
        f'<body style="background:#fff;color:#000;margin:2em;max-width:60em">{"<hr>".join(parts)}</body></html>'
    )
