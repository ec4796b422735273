"""Draft trees against trees of paths: a node is the tuple of branches from the root to it."""

import random
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sgl_kernel import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

ROOT = ()


def drafted(topk: int, depth: int, n: int, rng: random.Random) -> tuple[list[int], list[int], list[tuple]]:
    """Drafts as SGLang does: each step keeps the topk best candidates and expands each by topk branches.

    Returns the parent list, the selected candidates and the paths of all n nodes, the root first.
    """
    scores = {(k,): rng.random() for k in range(topk)}  # candidates in the order of their numbers
    kept = sorted(scores, key=scores.get, reverse=True)[:topk]
    parent_list = [-1] if depth > 1 else []
    for _ in range(depth - 1):
        numbers = {path: number for number, path in enumerate(scores)}
        parent_list += [numbers[path] for path in kept]
        step = {(*path, k): scores[path] * rng.random() for path, k in product(kept, range(topk))}
        scores |= step
        kept = sorted(step, key=step.get, reverse=True)[:topk]
    best = sorted(scores, key=scores.get, reverse=True)[: n - 1]
    chosen = [(number, path) for number, path in enumerate(scores) if path in best]
    return parent_list, [number for number, _ in chosen], [ROOT, *(path for _, path in chosen)]


def children_of(node: tuple, paths: list[tuple]) -> list[int]:
    return [i for i, path in enumerate(paths) if path and path[:-1] == node]


class Built:
    """What the kernel wrote for a batch."""

    def __init__(self, parent_lists, selected, seq_lens, topk: int, depth: int, mode: int):
        B, n = len(seq_lens), len(selected[0]) + 1
        prefix = sum(seq_lens) if mode == 0 else 0
        self.mask = torch.full((n * (prefix + B * n) + 3,), True)  # SGLang's buffer may be larger than needed
        self.positions = torch.full((B * n,), -9)
        self.index, self.next_token, self.next_sibling = torch.full((3, B, n), -1)
        build_tree_kernel_efficient_cpu(
            torch.tensor(parent_lists, dtype=torch.int64).view(B, -1), torch.tensor(selected).view(B, n - 1),
            torch.tensor(seq_lens), self.mask, self.positions, self.index, self.next_token, self.next_sibling,
            topk, depth, n, mode,
        )  # fmt: skip


@st.composite
def batches(draw):
    topk, depth = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    candidates = topk + (depth - 1) * topk * topk
    n = draw(st.integers(2, min(candidates, 20) + 1))
    rng = random.Random(draw(st.integers(0, 10**6)))
    seq_lens = draw(st.lists(st.integers(1, 30), min_size=1, max_size=3))
    return topk, depth, n, seq_lens, [drafted(topk, depth, n, rng) for _ in seq_lens], rng


@settings(deadline=None)
@given(batches(), st.sampled_from([0, 1]))
def test_a_tree_has_the_links_positions_and_ancestors_of_its_paths(batch, mode):
    topk, depth, n, seq_lens, trees, _ = batch
    built = Built([tree[0] for tree in trees], [tree[1] for tree in trees], seq_lens, topk, depth, mode)
    assert built.index.flatten().tolist() == list(range(len(trees) * n))
    positions, mask = built.positions.view(-1, n).tolist(), built.mask.tolist()
    for b, (_, _, paths) in enumerate(trees):
        prefix = seq_lens[b] if mode == 0 else 0
        assert positions[b] == [seq_lens[b] + len(path) for path in paths]
        for i, path in enumerate(paths):
            child, linked = int(built.next_token[b, i]), []
            while child != -1:
                linked.append(child)
                child = int(built.next_sibling[b, child])
            assert linked == children_of(path, paths)
            row, mask = mask[: prefix + n], mask[prefix + n :]
            assert row == [True] * prefix + [path[: len(other)] == other for other in paths]
    assert mask == [True] * 3


def test_a_node_whose_parent_was_not_selected_is_linked_nowhere():
    # topk 2, depth 2: candidates 0, 1 below the root; 2, 3 below the first entry kept (candidate 1); 4, 5 below 0
    built = Built([[-1, 1, 0]], [[0, 2]], [5], topk=2, depth=2, mode=1)
    assert built.next_token.tolist() == [[1, -1, -1]]
    assert built.next_sibling.tolist() == [[-1, -1, -1]]
    assert built.mask[:9].view(3, 3).tolist() == [[True, False, False], [True, True, False], [True, False, True]]


def test_bit_packed_masks_are_refused():
    with pytest.raises(ValueError, match="mode 2"):
        Built([[]], [[0]], [5], topk=1, depth=1, mode=2)


@settings(deadline=None)
@given(batches(), st.integers(1, 3))
def test_verification_follows_the_targets_tokens_down_the_tree(batch, vocab):
    topk, depth, n, seq_lens, trees, rng = batch
    built = Built([tree[0] for tree in trees], [tree[1] for tree in trees], seq_lens, topk, depth, 1)
    tokens = [[rng.randrange(vocab) for _ in range(n)] for _ in trees]
    targets = [[rng.randrange(vocab) for _ in range(n)] for _ in trees]
    predicts = torch.full((len(trees) * n,), -5, dtype=torch.int32)
    accept_index = torch.full((len(trees), depth + 1), -1, dtype=torch.int32)
    accepted = torch.full((len(trees),), -5, dtype=torch.int32)
    verify_tree_greedy_cpu(
        predicts=predicts, accept_index=accept_index, accept_token_num=accepted, candidates=torch.tensor(tokens),
        retrive_index=built.index, retrive_next_token=built.next_token, retrive_next_sibling=built.next_sibling,
        target_predict=torch.tensor(targets),
    )  # fmt: skip
    for b, (_, _, paths) in enumerate(trees):
        node, visited = 0, [0]
        while fits := [i for i in children_of(paths[node], paths) if tokens[b][i] == targets[b][node]]:
            node = fits[0]
            visited.append(node)
        assert accepted[b] == len(visited) - 1
        rest = [-1] * (depth + 1 - len(visited))
        assert accept_index[b].tolist() == [b * n + i for i in visited] + rest
        wanted = [targets[b][i] if i in visited else -5 for i in range(n)]
        assert predicts[b * n : (b + 1) * n].tolist() == wanted
