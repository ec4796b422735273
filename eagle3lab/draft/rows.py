"""Which rows of a feature store are trained: split, masks, and the rule for rows longer than the training length.

Shapes: T tokens, A aux layers, H hidden, M slots with a teacher, K TTT steps.

A row longer than `max_length` is dropped, or cut into windows. A window of max_length tokens owns its first
max_length - (K + 1) slots, the next one starts after them: every (slot, step) of the row is trained exactly once, and a
window's first slots see less context than they would in the whole row. Positions count from the window's first token;
RoPE only knows differences.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from eagle3lab.draft.batch import slot_mask, teacher_position
from eagle3lab.draft.recipe import Recipe
from eagle3lab.features.codec import TopK
from eagle3lab.features.slots import spans_to_mask

LEAST_ANSWER = 3  # tokens: the first comes from the prefill, two more make a verification that can accept


@dataclass(frozen=True)
class Piece:
    """Tokens start..end of a row, of which the first `own` slots are trained here."""

    row_id: str
    start: int
    end: int
    own: int


@dataclass
class Window:
    """A piece's part of a feature row, with the fields that `make_batch` reads."""

    input_ids_T: torch.Tensor
    loss_mask_T: torch.Tensor
    aux_TAH: torch.Tensor
    last_slots: torch.Tensor
    last_MH: torch.Tensor | None
    top: TopK | None
    own_slots: int


@dataclass(frozen=True)
class TrainingRows:
    """What is trained. `lengths`: piece id (a whole row's is the row's) -> tokens; `pieces`: the pieces of cut rows.

    `counts`: rows of the split, and of these: whole, cut, windows (of the cut ones), too_long (dropped), untrained (no
    slot to train under the mask, as in rows whose mask is all false).
    """

    lengths: dict[str, int]
    pieces: dict[str, Piece] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def row_ids(self) -> list[str]:
        """The rows that are trained, each once."""
        return list(dict.fromkeys(map(self.row_of, self.lengths)))

    def row_of(self, piece_id: str) -> str:
        """The row a piece belongs to."""
        return self.pieces[piece_id].row_id if piece_id in self.pieces else piece_id

    def subset(self, row_ids: Iterable[str]) -> "TrainingRows":
        """The pieces of some of the rows; `counts` stay those of the whole."""
        chosen = set(row_ids)
        kept = {piece: n for piece, n in self.lengths.items() if self.row_of(piece) in chosen}
        return TrainingRows(kept, {piece: self.pieces[piece] for piece in kept if piece in self.pieces}, self.counts)

    def reader(self, read_row: Callable) -> Callable:
        """A function from piece id (or row id) to what `make_batch` reads, on top of one from row id to feature row."""

        def read(piece_id: str):
            piece = self.pieces.get(piece_id)
            return read_row(piece_id) if piece is None else cut(read_row(piece.row_id), piece)

        return read


def training_rows(store, split: str, recipe: Recipe) -> TrainingRows:
    """The rows of a split that have a slot to train. Reads the index only. ValueError when there is none."""
    lengths: dict[str, int] = {}
    pieces: dict[str, Piece] = {}
    counts = dict.fromkeys(("rows", "whole", "cut", "windows", "too_long", "untrained"), 0)
    for row_id in store.ids:
        entry = store.index(row_id)
        if entry["split"] != split:
            continue
        counts["rows"] += 1
        n, mask_T = entry["n"], spans_to_mask(entry["loss_spans"], entry["n"])
        too_long = recipe.max_length is not None and n > recipe.max_length
        if not is_trained(mask_T, recipe):
            counts["untrained"] += 1
        elif not too_long:
            lengths[row_id] = n
            counts["whole"] += 1
        elif recipe.long_rows == "drop":
            counts["too_long"] += 1
        else:
            counts["cut"] += 1
            for piece in windows(row_id, n, recipe.max_length, recipe.ttt_steps):
                if is_trained(mask_T[piece.start : piece.end], recipe, piece.own):
                    name = f"{row_id}[{piece.start}:{piece.end}]"
                    lengths[name], pieces[name] = piece.end - piece.start, piece
                    counts["windows"] += 1
    if not lengths:
        raise ValueError(
            f"no row of split {split!r} has a slot to train: of {counts['rows']} rows {counts['untrained']} have an "
            f"empty loss mask and {counts['too_long']} are longer than max_length={recipe.max_length}"
        )
    return TrainingRows(lengths, pieces, counts)


def heldout_rows(store, split: str = "heldout", limit: int | None = None) -> list[str]:
    """Ids of rows with an answer of at least three tokens, spread evenly over the split; none is fine."""
    chosen = []
    for row_id in store.ids:
        entry = store.index(row_id)
        if entry["split"] == split and any(end - start >= LEAST_ANSWER for start, end in entry["loss_spans"]):
            chosen.append(row_id)
    if limit is None or len(chosen) <= limit:
        return chosen
    return [chosen[i * len(chosen) // limit] for i in range(limit)]


def is_trained(loss_mask_T: torch.Tensor, recipe: Recipe, own: int | None = None) -> bool:
    """Does one of the first `own` slots (None: all) have a step that is trained and whose teacher is stored.

    Teachers are stored at the positions before generated tokens, see features/slots.py.
    """
    T = loss_mask_T.shape[0]
    for step in range(recipe.ttt_steps):
        slots = slot_mask(loss_mask_T, step, recipe.loss_mask_kind)[:own].nonzero().squeeze(1)
        next_token = teacher_position(slots, step) + 1
        if bool(loss_mask_T[next_token[next_token < T]].any()):
            return True
    return False


def windows(row_id: str, n: int, max_length: int, ttt_steps: int) -> list[Piece]:
    """The pieces of a row of n > max_length tokens."""
    own, found, start = max_length - (ttt_steps + 1), [], 0
    while start + max_length < n:
        found.append(Piece(row_id, start, start + max_length, own))
        start += own
    return [*found, Piece(row_id, start, n, n - start)]


def cut(row, piece: Piece) -> Window:
    """A piece of a feature row."""
    tokens = slice(piece.start, piece.end)
    inside_M = (row.last_slots >= piece.start) & (row.last_slots < piece.end)
    top = getattr(row, "top", None)
    return Window(
        row.input_ids_T[tokens],
        row.loss_mask_T[tokens],
        row.aux_TAH[tokens],
        row.last_slots[inside_M] - piece.start,
        None if row.last_MH is None else row.last_MH[inside_M],
        None if top is None else TopK(*(tensor[inside_M] for tensor in top)),
        piece.own,
    )
