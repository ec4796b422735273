"""A grid on real servers: a chain, a tree, several streams, and a temperature that a CPU cannot serve."""

import pytest

from eagle3lab.analysis.bench import run_bench
from eagle3lab.analysis.grid import bench_rows, grid_cells, run_grid
from eagle3lab.engines.base import Request
from eagle3lab.engines.choice import EngineChoice
from eagle3lab.engines.sglang.pool import Speculation

pytestmark = pytest.mark.sglang


def test_chain_and_tree_are_measured_and_a_temperature_is_a_row_with_its_reason(
    story_engine, story_draft, story_prompts, tmp_path
):
    requests = [Request(f"r{i}", ids, 24) for i, ids in enumerate(story_prompts[:8])]
    cells = [*grid_cells([3], [1, 4], [8], [4]), *grid_cells([3], [1], [], [1], [0.7])]
    rows = run_grid(story_engine, story_draft, requests, cells, tmp_path / "grid.jsonl", "story", rounds=1)
    chain, tree, warm = rows
    for one in (chain, tree):
        assert (one.reason, one.row.differing, one.row.errors, one.baseline.errors) == ("", 0, 0, 0)
        assert sum(one.histogram) > 0 and len(one.positions.joint) == 3
        for row in (one.row, one.baseline):
            assert all(0 < first <= whole for first, whole in zip(row.first_s, row.request_s, strict=True))
            assert (row.tokens, row.concurrency) == (8 * 24, 4) and row.tok_s > 0 and row.request_tok_s > 0
        committed = 8 * 23  # of one round: all tokens but each answer's first, which is the prefill's
        assert one.row.accept_length == pytest.approx(committed / sum(one.histogram)) and one.row.accept_length > 1
    assert "verifies drafts greedily" in warm.reason and warm.row is None
    assert [row.setting for row in bench_rows(rows)] == ["baseline", "chain 3", "tree 3 x 4, 8 tokens"]


def test_two_servers_that_run_already_are_compared(story, story_engine, story_draft, story_prompts):
    plain, chain = story_engine.servers.plain(), story_engine.servers.speculating(Speculation(str(story_draft), 3))
    choice = EngineChoice("sglang", story, "float32", frozenset(), [plain.url, chain.url])
    requests = [Request(f"r{i}", ids, 16) for i, ids in enumerate(story_prompts[:2])]
    with choice.open() as engine:
        bench = run_bench(engine, story_draft, requests, [3], rounds=1)
        with pytest.raises(ValueError, match="num_steps=3.*asked for.*num_steps=2"):
            run_bench(engine, story_draft, requests, [2], rounds=1)
    assert bench.differences == [] and bench.rows[1].accept_length > 1
    assert all(0 < row.first_s[0] < row.request_s[0] for row in bench.rows)
    wrong_way_round = EngineChoice("sglang", story, "float32", frozenset(), [chain.url, plain.url])
    with pytest.raises(ValueError, match="the baseline needs a server without a drafter"):
        wrong_way_round.open()
