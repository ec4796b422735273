"""Draft trees: from selected candidates to a tree for one verification, and the greedy walk over it.

A drafter expands `topk` branches per step. Its candidates are numbered step by step; candidate c hangs below entry
c // topk of the request's parent list, whose entry 0 stands for the root (the last verified token) and whose other
entries are candidate numbers. The n - 1 best candidates, sorted by number, become nodes 1..n-1; node 0 is the root.

Shapes: B requests, n nodes of a tree (num_draft_tokens), X entries of a parent list, S = num_steps + 1.
The argument names with `retrive` are those of SGLang's call sites.
"""

import torch

FULL_MASK, QLEN_ONLY = 0, 1  # SGLang's TreeMaskMode; 2 (bit-packed) is for GPUs
NONE = -1


def build_tree_kernel_efficient_cpu(
    parent_list_BX: torch.Tensor,
    selected_index_BM: torch.Tensor,
    verified_seq_len_B: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrive_index_Bn: torch.Tensor,
    retrive_next_token_Bn: torch.Tensor,
    retrive_next_sibling_Bn: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Writes the tree of each request. int64 throughout, but for the mask (bool).

    parent_list: X = 1 + topk * (depth - 1), or 0 when depth is 1. selected_index: [B, n - 1], sorted.
    positions [B * n]: seq_len + depth of the node, 0 for the root. retrive_index: b * n + node. next_token: the first
    child; next_sibling: the next child of the same parent; -1 for none. Children are linked in ascending order.
    tree_mask, flat: row i, column j is true when node j is node i or one of its ancestors. Mode 1: n x n per request.
    Mode 0: n x (seq_len + n) per request; the seq_len columns of the prefix are left as they are.
    A node whose parent was not selected (possible when scores tie) is linked nowhere and cannot be accepted.
    """
    n = draft_token_num
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise ValueError(f"tree mask mode {tree_mask_mode} is not supported on a CPU, only 0 (full) and 1 (n x n)")
    seq_lens = verified_seq_len_B.tolist()
    first_child, next_sibling, depths, ancestors = [], [], [], []
    for parents, selected in zip(parent_list_BX.tolist(), selected_index_BM.tolist(), strict=True):
        tree = _link(_parent_nodes(parents, selected, topk))
        for rows, row in zip((first_child, next_sibling, depths, ancestors), tree, strict=True):
            rows.append(row)
    B = len(seq_lens)
    retrive_index_Bn.copy_(torch.arange(B * n).view(B, n))
    retrive_next_token_Bn.copy_(torch.tensor(first_child).view(B, n))
    retrive_next_sibling_Bn.copy_(torch.tensor(next_sibling).view(B, n))
    positions.copy_((torch.tensor(depths).view(B, n) + verified_seq_len_B[:, None]).flatten())
    end = 0
    for seq_len, ancestors_nn in zip(seq_lens, torch.tensor(ancestors).view(B, n, n), strict=True):
        prefix = seq_len if tree_mask_mode == FULL_MASK else 0
        start, end = end, end + n * (prefix + n)
        tree_mask[start:end].view(n, prefix + n)[:, prefix:] = ancestors_nn


def _parent_nodes(parent_list: list[int], selected: list[int], topk: int) -> list[int]:
    """Parent node of nodes 1..n-1, -1 where it was not selected."""
    node_of = {candidate: node for node, candidate in enumerate(selected, start=1)}
    entries = [candidate // topk for candidate in selected]
    return [node_of.get(parent_list[entry], NONE) if entry else 0 for entry in entries]


def _link(parents: list[int]) -> tuple[list[int], list[int], list[int], list[list[bool]]]:
    """First child, next sibling, depth and ancestor row of all nodes, from the parents of nodes 1..n-1.

    A parent comes before its children, because candidates are numbered step by step.
    """
    n = len(parents) + 1
    first_child, next_sibling, depths = [NONE] * n, [NONE] * n, [0] * n
    last_child = [NONE] * n
    ancestors = [[True] + [False] * (n - 1)]
    for node, parent in enumerate(parents, start=1):
        above = max(parent, 0)  # a node without a parent looks like a child of the root, but has no link
        depths[node] = depths[above] + 1
        row = ancestors[above].copy()
        row[node] = True
        ancestors.append(row)
        if parent == NONE:
            continue
        if last_child[parent] == NONE:
            first_child[parent] = node
        else:
            next_sibling[last_child[parent]] = node
        last_child[parent] = node
    return first_child, next_sibling, depths, ancestors


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Descends from each root to the child that holds the target's own next token, until there is none.

    candidates [B, n]: tokens of the nodes. target_predict [B, n]: the target's argmax after each node. Written:
    predicts (int32 [B * n], flat): the target's token at every visited node. accept_index (int32 [B, S]): the visited
    nodes as b * n + node, the root first; the rest is left as it is. accept_token_num (int32 [B]): nodes visited
    without the root, at most S - 1.
    """
    most = accept_index.shape[1]
    tokens, links, targets = candidates.tolist(), retrive_next_token.tolist(), target_predict.tolist()
    siblings, indices = retrive_next_sibling.tolist(), retrive_index.tolist()
    for b in range(len(tokens)):
        path = [0]
        while len(path) < most:
            wanted, child = targets[b][path[-1]], links[b][path[-1]]
            while child != NONE and tokens[b][child] != wanted:
                child = siblings[b][child]
            if child == NONE:
                break
            path.append(child)
        visited = torch.tensor([indices[b][node] for node in path])
        accept_index[b, : len(path)] = visited
        accept_token_num[b] = len(path) - 1
        predicts[visited] = target_predict.flatten()[visited].to(predicts.dtype)
