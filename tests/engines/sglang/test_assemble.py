"""Rows come out of forward passes as they went in, however the server cut and mixed them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.engines.sglang.assemble import Assembler, Expected, RowError, ids_checksum, split_pass

A, H = 2, 3


def tokens(number, length):
    return torch.arange(length, dtype=torch.int64) + 1000 * number


def states(ids_N, width):
    """States that tell their token: any mix-up shows."""
    return ids_N.float()[:, None] + torch.arange(width) / 100


class Server:
    """Cuts rows into passes as a server may: a few requests a pass, a bounded number of tokens, in between single
    decoded tokens of rows that are whole, requests of others, and padding at the end."""

    def __init__(self, lengths, draw):
        self.lengths, self.draw = lengths, draw
        self.at = [0] * len(lengths)

    def passes(self):
        while any(at < length for at, length in zip(self.at, self.lengths, strict=True)):
            pieces = []
            budget = self.draw(st.integers(1, 9))
            for number in self.draw(st.permutations(range(len(self.lengths)))):
                start, left = self.at[number], self.lengths[number] - self.at[number]
                if left <= 0:
                    if self.draw(st.booleans()):
                        pieces.append((f"r{number}", start, tokens(number, start + 1)[start:]))
                        self.at[number] += 1
                elif budget:
                    n = self.draw(st.integers(1, min(left, budget)))
                    budget -= n
                    pieces.append((f"r{number}", start, tokens(number, start + n)[start:]))
                    self.at[number] += n
            if self.draw(st.booleans()):
                pieces.insert(self.draw(st.integers(0, len(pieces))), ("HEALTH_CHECK", 0, tokens(99, 2)))
            yield pieces


def as_pass(pieces, padding=0):
    ids_N = torch.cat([ids for _, _, ids in pieces] + [torch.full((padding,), -7)])
    return (
        [rid for rid, _, _ in pieces], [start for _, start, _ in pieces], [len(ids) for _, _, ids in pieces],
        ids_N, states(ids_N, A * H), states(ids_N, H),
    )  # fmt: skip


def announced(lengths):
    assembler = Assembler()
    for number, length in enumerate(lengths):
        assembler.expect(f"r{number}", Expected(f"row {number}", length, ids_checksum(tokens(number, length))))
    return assembler


def check(row, number, length):
    ids_T = tokens(number, length)
    assert row.rid == f"r{number}"
    assert torch.equal(row.input_ids_T, ids_T.int())
    assert torch.equal(row.aux_TAH, states(ids_T, A * H).view(length, A, H))
    assert torch.equal(row.last_TH, states(ids_T, H))


@settings(deadline=None, max_examples=60)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6), data=st.data())
def test_any_chunking_and_batching_gives_the_rows_back(lengths, data):
    assembler, rows = announced(lengths), {}
    for pieces in Server(lengths, data.draw).passes():
        for piece in split_pass(*as_pass(pieces, padding=data.draw(st.integers(0, 3)))):
            row = assembler.add(piece)
            if row is not None:
                assert row.rid not in rows
                rows[row.rid] = row
    for number, length in enumerate(lengths):
        check(rows[f"r{number}"], number, length)
    assert not assembler.unfinished()


@settings(deadline=None, max_examples=60)
@given(lengths=st.lists(st.integers(2, 12), min_size=1, max_size=4), data=st.data())
def test_a_dropped_piece_is_an_error_that_names_the_row_and_harms_no_other(lengths, data):
    victim = data.draw(st.integers(0, len(lengths) - 1))
    assembler, rows, errors, dropped = announced(lengths), {}, [], None
    for pieces in Server(lengths, data.draw).passes():
        for piece in split_pass(*as_pass(pieces)):
            if piece.rid == f"r{victim}" and dropped is None and data.draw(st.booleans()):
                dropped = piece
                continue
            try:
                row = assembler.add(piece)
            except RowError as error:
                errors.append(str(error))
                continue
            if row is not None:
                rows[row.rid] = row
    others = {f"r{number}" for number in range(len(lengths))} - {f"r{victim}"}
    assert others <= set(rows)
    if dropped is None or dropped.start >= lengths[victim]:
        check(rows[f"r{victim}"], victim, lengths[victim])
        return
    assert f"r{victim}" not in rows
    told = errors + list(assembler.unfinished().values())
    if dropped.start or told:  # nothing came at all when the only piece was dropped
        assert len(told) == 1 and f"row {victim}" in told[0]


@settings(deadline=None, max_examples=60)
@given(length=st.integers(2, 12), data=st.data())
def test_a_request_that_the_server_starts_again_counts_once_with_its_later_tokens(length, data):
    assembler = announced([length])
    cut = data.draw(st.integers(1, length - 1))
    again = data.draw(st.integers(0, cut))
    ids_T = tokens(0, length)
    spoiled = ids_T[:cut].clone()
    spoiled[again:] += 500  # what is computed anew replaces these
    for start, ids in ((0, spoiled), (again, ids_T[again:])):
        rows = [assembler.add(piece) for piece in split_pass(*as_pass([("r0", start, ids)]))]
    check(rows[0], 0, length)


def test_rows_missing_at_the_start_blame_the_prefix_cache():
    assembler = announced([5])
    (piece,) = split_pass(*as_pass([("r0", 2, tokens(0, 5)[2:])]))
    with pytest.raises(RowError, match=r"'row 0'.*tokens 0\.\.1.*--disable-radix-cache"):
        assembler.add(piece)
    assert not assembler.expects("r0")


def test_other_tokens_than_those_announced_are_an_error():
    assembler = announced([3])
    (piece,) = split_pass(*as_pass([("r0", 0, tokens(1, 3))]))
    with pytest.raises(RowError, match="'row 0'.*other tokens"):
        assembler.add(piece)


def test_a_pass_with_fewer_states_than_tokens_is_refused():
    rids, starts, lengths, ids_N, aux_NE, last_NH = as_pass([("r0", 0, tokens(0, 4))])
    with pytest.raises(ValueError, match="4 tokens gave last states of 3"):
        list(split_pass(rids, starts, lengths, ids_N, aux_NE, last_NH[:3]))
    with pytest.raises(ValueError, match="1 requests, 1 starts and 0 lengths"):
        list(split_pass(rids, starts, [], ids_N, aux_NE, last_NH))
