"""From forward passes to rows: the pieces of each request, put together again. Knows nothing of SGLang.

A forward pass holds pieces of several requests end to end. A long prompt comes in several passes (chunked
prefill); a pass may also hold single decoded tokens, which belong to no row.

Shapes: N tokens of a piece or pass, T tokens of a row, A aux layers, H hidden, E = A * H.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch


class RowError(ValueError):
    """One row could not be captured; the others can. The message names the row."""


@dataclass(frozen=True)
class Piece:
    """What one forward pass computed of one request: tokens `start` .. `start + N` of it."""

    rid: str
    start: int
    ids_N: torch.Tensor
    aux_NE: torch.Tensor
    last_NH: torch.Tensor


@dataclass(frozen=True)
class Expected:
    """What a row must be when it is whole: its name, its length and `ids_checksum` of its tokens."""

    row_id: str
    length: int
    checksum: int


@dataclass(frozen=True)
class Row:
    """One whole row: input_ids_T int32, aux_TAH and last_TH in the target's dtype."""

    rid: str
    input_ids_T: torch.Tensor
    aux_TAH: torch.Tensor
    last_TH: torch.Tensor


@dataclass
class _Partial:
    expected: Expected
    pieces: list[Piece] = field(default_factory=list)
    seen: int = 0


def ids_checksum(input_ids: Iterable[int] | torch.Tensor) -> int:
    """CRC-32 of the token ids as int32."""
    ids_T = torch.as_tensor(input_ids, dtype=torch.int32)
    return zlib.crc32(ids_T.contiguous().cpu().numpy().tobytes())


def split_pass(
    rids: list[str],
    starts: list[int],
    lengths: list[int],
    ids_N: torch.Tensor,
    aux_NE: torch.Tensor,
    last_NH: torch.Tensor,
) -> Iterator[Piece]:
    """The pieces of one forward pass, in its order. Tokens after the last piece are padding.

    Raises ValueError when the lists differ in length or the tensors hold fewer tokens than they say.
    """
    total = sum(lengths)
    if not len(rids) == len(starts) == len(lengths):
        raise ValueError(f"{len(rids)} requests, {len(starts)} starts and {len(lengths)} lengths in one forward pass")
    for name, tensor in (("token ids", ids_N), ("aux states", aux_NE), ("last states", last_NH)):
        if tensor.shape[0] < total:
            raise ValueError(f"a forward pass of {total} tokens gave {name} of {tensor.shape[0]}")
    offset = 0
    for rid, start, length in zip(rids, starts, lengths, strict=True):
        part = slice(offset, offset + length)
        yield Piece(rid, start, ids_N[part], aux_NE[part], last_NH[part])
        offset += length


class Assembler:
    """Puts the pieces of announced requests together. Pieces of other requests are dropped without a word:
    they are nobody's rows, or they came after their row was whole (decoded tokens)."""

    def __init__(self):
        self._partial: dict[str, _Partial] = {}

    def expect(self, rid: str, expected: Expected) -> None:
        """Announces a request; a second announcement of the same rid starts it anew."""
        self._partial[rid] = _Partial(expected)

    def expects(self, rid: str) -> bool:
        """Was this request announced, and is it neither whole nor failed."""
        return rid in self._partial

    def add(self, piece: Piece) -> Row | None:
        """Takes the next piece of a request and gives the row when this makes it whole.

        A server that starts a request again (retry, retraction) repeats tokens: the later ones count. Raises
        RowError when tokens before `start` were never seen, or when the tokens are not those announced; the
        request is then forgotten.
        """
        partial = self._partial.get(piece.rid)
        if partial is None:
            return None
        expected = partial.expected
        if piece.start > partial.seen:
            del self._partial[piece.rid]
            raise RowError(
                f"row {expected.row_id!r}: the server computed no states for tokens {partial.seen}..{piece.start - 1}; "
                "it took them from its prefix cache, start it with --disable-radix-cache"
            )
        _cut(partial, piece.start)
        partial.pieces.append(piece)
        partial.seen += piece.ids_N.shape[0]
        if partial.seen < expected.length:
            return None
        _cut(partial, expected.length)
        del self._partial[piece.rid]
        return _whole(piece.rid, partial)

    def unfinished(self) -> dict[str, str]:
        """rid -> what is missing, for every request of which some tokens came, but not all."""
        return {
            rid: f"row {p.expected.row_id!r}: only {p.seen} of {p.expected.length} tokens went through the server"
            for rid, p in self._partial.items()
            if p.seen
        }


def _cut(partial: _Partial, length: int) -> None:
    """Keeps the first `length` tokens."""
    kept, room = [], length
    for piece in partial.pieces:
        if room <= 0:
            break
        if piece.ids_N.shape[0] > room:
            piece = Piece(piece.rid, piece.start, piece.ids_N[:room], piece.aux_NE[:room], piece.last_NH[:room])
        kept.append(piece)
        room -= piece.ids_N.shape[0]
    partial.pieces, partial.seen = kept, length - max(room, 0)


def _whole(rid: str, partial: _Partial) -> Row:
    ids_T = torch.cat([piece.ids_N for piece in partial.pieces]).to(torch.int32)
    aux_TE = torch.cat([piece.aux_NE for piece in partial.pieces])
    last_TH = torch.cat([piece.last_NH for piece in partial.pieces])
    if ids_checksum(ids_T) != partial.expected.checksum:
        raise RowError(f"row {partial.expected.row_id!r}: the server ran other tokens than those that were sent")
    return Row(rid, ids_T, aux_TE.unflatten(-1, (-1, last_TH.shape[-1])), last_TH)
