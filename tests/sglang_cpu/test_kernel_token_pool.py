"""Copies between cache slots, token pool rows and flat lists, each against a loop over single cells."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sgl_kernel import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)

POOL, COLUMNS = 7, 40


def int32(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def filled_pool() -> torch.Tensor:
    """A token pool in which every cell holds another slot."""
    return torch.randperm(POOL * COLUMNS).view(POOL, COLUMNS).int()


@st.composite
def spans(draw) -> tuple[list[int], list[int], list[int]]:
    """(pool rows, starts, ends) of up to 5 requests, empty spans included."""
    rows = draw(st.lists(st.integers(0, POOL - 1), min_size=1, max_size=5, unique=True))
    cuts = [sorted(draw(st.tuples(*[st.integers(0, COLUMNS)] * 2))) for _ in rows]
    return rows, [cut[0] for cut in cuts], [cut[1] for cut in cuts]


def cells_of(rows, starts, ends) -> list[tuple[int, int]]:
    return [(row, c) for row, start, end in zip(rows, starts, ends, strict=True) for c in range(start, end)]


@settings(deadline=None)
@given(spans())
def test_new_slots_go_into_their_requests_columns_and_nowhere_else(span):
    rows, starts, ends = span
    slots = torch.arange(1000, 1000 + 5 * COLUMNS)
    pool = filled_pool()
    expected = pool.clone()
    for n, cell in enumerate(cells_of(*span)):
        expected[cell] = slots[n]
    assign_req_to_token_pool_cpu(torch.tensor(rows), pool, int32(starts), int32(ends), slots, COLUMNS)
    assert torch.equal(pool, expected)


@settings(deadline=None)
@given(spans())
def test_slots_are_read_back_one_request_after_the_other(span):
    rows, starts, ends = span
    pool = filled_pool()
    out = torch.full((5 * COLUMNS,), -7)
    assign_extend_cache_locs_cpu(torch.tensor(rows), pool, torch.tensor(starts), torch.tensor(ends), out, COLUMNS)
    expected = [int(pool[cell]) for cell in cells_of(*span)]
    assert out[: len(expected)].tolist() == expected
    assert set(out[len(expected) :].tolist()) <= {-7}


drafts = st.tuples(
    st.lists(st.tuples(st.integers(0, POOL - 1), st.integers(0, COLUMNS - 16)), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(1, 4),
)


@settings(deadline=None)
@given(drafts)
def test_draft_slots_start_behind_the_sequence(draft):
    requests, topk, num_steps = draft
    pool = filled_pool()
    out = torch.empty(len(requests) * topk * num_steps, dtype=torch.int64)
    rows, seq_lens = (torch.tensor(values) for values in zip(*requests, strict=True))
    assign_draft_cache_locs_contiguous_cpu(rows, pool, seq_lens, out, COLUMNS, topk, num_steps)
    assert out.tolist() == [int(pool[row, n + i]) for row, n in requests for i in range(topk * num_steps)]


@settings(deadline=None)
@given(drafts)
def test_a_branch_sees_the_prefix_and_its_own_draft_slots(draft):
    requests, topk, num_steps = draft
    pool = filled_pool()
    rows, seq_lens = (torch.tensor(values) for values in zip(*requests, strict=True))
    branches = build_draft_decode_metadata_cpu(pool, rows, seq_lens, topk, num_steps, COLUMNS)
    assert branches.dtype == pool.dtype and len(branches) == len(requests) * topk
    for b, (row, n) in enumerate(requests):
        for k in range(topk):
            own = pool[row, n + k * num_steps : n + (k + 1) * num_steps]
            assert branches[b * topk + k, : n + num_steps].tolist() == [*pool[row, :n].tolist(), *own.tolist()]


def test_the_bonus_token_is_the_last_accepted_one():
    bonus = int32([0, 0, 0])
    fill_bonus_tokens_cpu(int32([10, 11, 12, 13, 20, 0, 0, 0, 30, 31, 0, 0]), int32([4, 1, 2]), bonus, 4)
    assert bonus.tolist() == [13, 20, 31]


def test_slots_of_accepted_tokens_are_collected_in_order():
    out = torch.full((6,), -7)
    accept_index = int32([[0, 2, -1], [3, -1, -1], [6, 7, 8]])
    fill_accept_out_cache_loc_cpu(accept_index, torch.arange(100, 109), out)
    assert out.tolist() == [100, 102, 103, 106, 107, 108]


def test_inputs_are_rotated_per_request():
    ids = torch.tensor([1, 2, 3, 4, 5, 6, 7])
    rotate_input_ids_cpu(ids, int32([0, 3, 3]), int32([3, 0, 4]), torch.tensor([[91], [92], [93]]))
    assert ids.tolist() == [2, 3, 91, 5, 6, 7, 93]


def test_a_rotated_input_can_end_at_a_selected_place():
    ids = torch.tensor([1, 2, 3, 4, 5, 6, 7])
    rotate_input_ids_cpu(ids, int32([0, 3]), int32([3, 4]), torch.tensor([91, 93]), torch.tensor([1, 4]))
    assert ids.tolist() == [2, 91, 3, 5, 93, 7, 7]


@settings(deadline=None)
@given(st.permutations(range(8)), st.permutations(range(8)), st.integers(0, 8))
def test_cache_rows_move_as_if_all_were_read_before_the_first_is_written(targets, sources, count):
    buffers = [torch.randn(8, 2, 3), torch.randn(8, 1, 5).bfloat16(), torch.randint(0, 9, (8, 1), dtype=torch.uint8)]
    before = [buffer.clone() for buffer in buffers]
    copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
        torch.tensor([buffer.stride(0) * buffer.itemsize for buffer in buffers]),
        torch.tensor(targets[:count], dtype=torch.int64),
        torch.tensor(sources[:count], dtype=torch.int64),
    )
    moved = dict(zip(targets[:count], sources[:count], strict=True))
    for buffer, old in zip(buffers, before, strict=True):
        for row in range(8):
            assert torch.equal(buffer[row], old[moved.get(row, row)])
