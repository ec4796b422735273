"""The grid on a fake server with a fake clock: resumed, with failing settings, and numbers calculated by hand."""

import dataclasses

import pytest

from eagle3lab.analysis.bench_row import Condition
from eagle3lab.analysis.breakeven import fit_cycle_cost
from eagle3lab.analysis.cell import Cell
from eagle3lab.analysis.grid import bench_rows, grid_cells, run_grid
from eagle3lab.analysis.tables import settings_table
from eagle3lab.engines.base import Request
from eagle3lab.engines.servers.errors import RequestRefused, ServerGone
from eagle3lab.engines.sglang.stats import SpecStats
from eagle3lab.engines.sglang.wire import Answer

REQUESTS = [Request(f"p{i}", [i], 21) for i in range(4)]


class FakeServer:
    """A step of all streams takes 10 ms and 2 ms a stream more; a cycle 1 ms a draft step and 0.5 ms a verified token
    besides. One draft a cycle is accepted. Settings in `broken` do not start; rows in `refused` are refused."""

    def __init__(self, broken=(), stop_after=None, refused=(), error=RequestRefused):
        self.now, self.broken, self.stop_after, self.cells, self.asked = 0.0, broken, stop_after, [], []
        self.refused, self.error, self.sides, self.slowness = refused, error, [], {}

    def clock(self):
        return self.now

    def step(self, streams):
        return 0.010 + 0.002 * streams

    def _answers(self, requests, streams, cycle, cycles, stats):
        batches = [requests[i : i + streams] for i in range(0, len(requests), streams)]
        for batch in batches:
            self.now += cycle * cycles * self.slowness.get(len(self.sides) - 1, 1)
            for request in batch:
                self.asked.append(request)
                if request.id in self.refused:
                    raise self.error("no", row_id=request.id)
                told = {"first_seconds": cycle}
                yield Answer(
                    request.id, request.input_ids, list(range(21)), "length", cycle * cycles, None, stats, **told
                )

    def generate(self, requests, batch_size, streamed):
        assert streamed
        self.sides.append("plain")
        return self._answers(requests, batch_size, self.step(batch_size), 20, SpecStats())

    def speculate(self, draft, requests, num_steps, topk=1, num_draft_tokens=None, batch_size=1):
        tokens = num_draft_tokens or num_steps + 1
        self.sides.append("chain")
        self.cells.append(cell := Cell(batch_size, num_steps, topk, tokens))
        if cell in self.broken:
            raise RuntimeError("the server died:\n  out of memory")
        if self.stop_after is not None and len(set(self.cells)) > self.stop_after:
            raise KeyboardInterrupt
        cycle = self.step(batch_size) + 0.001 * num_steps + 0.0005 * tokens
        return self._answers(requests, batch_size, cycle, 10, SpecStats(10, histogram=(0, 10)))


def run(server, path, cells, **more):
    options = {"setting": "fake", "rounds": 2, **more}
    return run_grid(server, "folder", REQUESTS, cells, path, clock=server.clock, **options)


def test_cells_of_a_grid():
    cells = grid_cells([2, 3], [1, 4], [8, 16], [1, 2])
    assert len(cells) == len(set(cells)) == 2 * 2 * (1 + 2)
    assert [cell for cell in cells if cell.topk == 1] == [
        Cell(1, 2, 1, 3), Cell(1, 3, 1, 4), Cell(2, 2, 1, 3), Cell(2, 3, 1, 4),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="give their num_draft_tokens"):
        grid_cells([2], [4], [], [1])
    with pytest.raises(ValueError, match="at least 1"):
        grid_cells([0], [1], [], [1])


def test_numbers_by_hand(tmp_path):
    chain, tree = run(FakeServer(), tmp_path / "grid.jsonl", [Cell(1, 3, 1, 4), Cell(2, 3, 4, 16)])
    # one stream: 20 plain steps of 12 ms; 10 cycles of 12 + 3 + 2 = 17 ms, 20 tokens
    assert chain.baseline.tok_s == pytest.approx(21 / 0.24)
    assert chain.row.speedup == pytest.approx(0.24 / 0.17)
    assert (chain.row.accept_length, chain.row.break_even) == (2.0, pytest.approx(2.0 * 0.17 / 0.24))
    assert chain.row.request_s == pytest.approx((0.17, 0.17, 0.17)) and chain.row.first_s == pytest.approx((0.017,) * 3)
    assert chain.baseline.first_s == pytest.approx((0.012,) * 3)
    assert chain.row.request_tok_s == pytest.approx(21 / 0.17)
    assert chain.histogram == (0, 2 * 4 * 10) and chain.positions.joint == (1.0,)
    assert (chain.row.differing, chain.row.prompts, chain.row.rounds, chain.reason) == (0, 4, 2, "")
    # two streams: steps of 14 ms, cycles of 14 + 3 + 8 = 25 ms; tokens of both streams count
    assert tree.baseline.tok_s == pytest.approx(2 * 21 / 0.28)
    assert tree.row.tok_s == pytest.approx(2 * 21 / 0.25)
    assert (tree.row.topk, tree.row.num_draft_tokens, tree.row.concurrency) == (4, 16, 2)
    assert tree.row.setting == "tree 3 x 4, 16 tokens"
    assert tree.row.request_tok_s == pytest.approx(21 / 0.25)  # of one stream


def test_a_cycle_of_several_streams_costs_what_it_costs(tmp_path):
    cells = grid_cells([1, 2, 4], [1, 2], [6, 12], [1, 4])
    rows = bench_rows(run(FakeServer(), tmp_path / "grid.jsonl", cells))
    for streams in (1, 4):
        cost = fit_cycle_cost(rows, Condition(streams))
        prefill = 20 / 21  # end to end: the prefill's token is counted and costs nothing here
        assert cost.plain_ms == pytest.approx((10 + 2 * streams) * prefill)
        assert cost.step_ms == pytest.approx(1.0 * prefill)
        assert cost.token_ms == pytest.approx(0.5 * prefill)
        assert cost.fixed_ms == pytest.approx((10 + 2 * streams) * prefill)


def test_temperatures_and_cuda_graphs_are_conditions_of_their_own(tmp_path):
    cells = grid_cells([1, 2], [1], [], [1], [0.0, 0.7], cuda_graphs=False)
    assert [(cell.temperature, cell.num_steps) for cell in cells] == [(0.0, 1), (0.0, 2), (0.7, 1), (0.7, 2)]
    server = FakeServer()
    rows = bench_rows(run(server, tmp_path / "grid.jsonl", cells))
    assert [(row.setting, row.temperature, row.differing) for row in rows] == [
        ("baseline", 0.0, 0), ("chain 1", 0.0, 0), ("chain 2", 0.0, 0),
        ("baseline", 0.7, None), ("chain 1", 0.7, None), ("chain 2", 0.7, None),
    ]  # fmt: skip
    assert {row.cuda_graphs for row in rows} == {False}
    assert fit_cycle_cost(rows, Condition(1, 0.7, False)).condition.temperature == 0.7
    # every answer of a sampled cell has a seed of its own, and both sides the same ones: warm-up, then two rounds
    warm = [request.seed for request in server.asked if request.temperature == 0.7]
    one_cell = [0, 0, *range(4), *range(4), *range(4, 8), *range(4, 8)]
    assert warm == one_cell * 2
    with pytest.raises(ValueError, match="temperature"):
        grid_cells([1], [1], [], [1], [-0.5])


def test_a_refused_request_is_counted_and_the_others_are_measured(tmp_path):
    (row,) = run(FakeServer(refused=["p2"]), tmp_path / "grid.jsonl", [Cell(1, 3, 1, 4)])
    assert (row.reason, row.row.errors, row.baseline.errors) == ("", 2, 2)
    assert row.row.tokens == 2 * 3 * 21 and row.row.accept_length == 2.0
    (gone,) = run(FakeServer(refused=["p2"], error=ServerGone), tmp_path / "gone.jsonl", [Cell(1, 3, 1, 4)])
    assert gone.reason == "ServerGone: no" and gone.row is None


def test_a_failing_setting_is_a_row_with_its_reason(tmp_path):
    cells = grid_cells([2], [1, 4], [8], [1, 2])
    rows = run(FakeServer(broken=[cells[1]]), tmp_path / "grid.jsonl", cells)
    assert [row.reason for row in rows] == ["", "RuntimeError: the server died: out of memory", "", ""]
    assert rows[1].row is None and len(bench_rows(rows)) == 2 + 3
    assert str(cells[1]) == "tree 2 x 4, 8 tokens at one stream"


def test_an_interrupted_grid_goes_on_with_the_next_cell(tmp_path):
    cells = grid_cells([1, 2, 3], [1], [], [1, 2])
    whole = run(FakeServer(), tmp_path / "whole.jsonl", cells)
    path, seen = tmp_path / "grid.jsonl", []
    with pytest.raises(KeyboardInterrupt):
        run(FakeServer(stop_after=2), path, cells)
    with open(path, "a") as file:
        file.write('{"cell": {"concur')  # a line that was cut off
    server = FakeServer()
    again = run(server, path, cells, on_progress=lambda done, total: seen.append((done, total)))
    assert set(server.cells) == set(cells[2:])
    assert [row.cell for row in again] == cells
    assert rounded(again) == rounded(whole)  # the clock runs on from cell to cell
    assert seen[-1] == (6, 6)
    still = FakeServer()
    assert run(still, path, cells) == again and still.cells == []
    assert len(path.read_text().splitlines()) == 1 + len(cells)


def rounded(rows):
    return [round_all(dataclasses.asdict(row)) for row in rows]


def round_all(value):
    if isinstance(value, dict):
        return {name: round_all(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [round_all(inner) for inner in value]
    return round(value, 6) if isinstance(value, float) else value


def test_a_file_of_another_benchmark_is_not_mixed_in(tmp_path):
    path = tmp_path / "grid.jsonl"
    run(FakeServer(), path, [Cell(1, 2, 1, 3)])
    with pytest.raises(ValueError, match="other setting"):
        run(FakeServer(), path, [Cell(1, 2, 1, 3)], setting="another machine")
    with pytest.raises(ValueError, match="other rounds"):
        run(FakeServer(), path, [Cell(1, 2, 1, 3)], rounds=1)
    with pytest.raises(ValueError, match="8 requests for concurrency 8"):
        run(FakeServer(), path, [Cell(8, 2, 1, 3)])


def test_an_engine_without_trees_says_so_in_the_row(tmp_path):
    class Plain(FakeServer):
        def speculate(self, draft, requests, num_steps):
            return super().speculate(draft, requests, num_steps)

    chain, tree = run(Plain(), tmp_path / "grid.jsonl", [Cell(1, 2, 1, 3), Cell(1, 2, 4, 8)])
    assert chain.reason == "" and "unexpected keyword argument 'topk'" in tree.reason


def test_the_two_sides_take_turns_in_going_first(tmp_path):
    server = FakeServer()
    run(server, tmp_path / "grid.jsonl", [Cell(1, 3, 1, 4)], rounds=3)
    assert server.sides == ["plain", "chain", "plain", "chain", "chain", "plain", "plain", "chain"]  # warm-up first


def test_unequal_rounds_give_their_median(tmp_path):
    server = FakeServer()
    server.slowness = {3: 4, 4: 2, 7: 1}  # passes 3, 4 and 7 are the three rounds of the chain
    (row,) = run(server, tmp_path / "grid.jsonl", [Cell(1, 3, 1, 4)], rounds=3)
    assert row.row.tok_s == pytest.approx(21 / 0.34)  # 10 cycles of 17 ms, twice as slow
    assert (row.row.tok_s_low, row.row.tok_s_high) == pytest.approx((21 / 0.68, 21 / 0.17))
    assert row.baseline.tok_s == pytest.approx(21 / 0.24) and row.row.speedup == pytest.approx(0.24 / 0.34)


def test_the_speed_of_one_request_is_the_median_of_the_requests(tmp_path):
    class Uneven(FakeServer):
        def generate(self, requests, batch_size, streamed):
            for answer, seconds in zip(
                super().generate(requests, batch_size, streamed), (3.0, 1.0, 2.1, 0.7), strict=False
            ):
                yield dataclasses.replace(answer, seconds=seconds)

    (row,) = run(Uneven(), tmp_path / "grid.jsonl", [Cell(1, 3, 1, 4)])
    assert row.baseline.request_tok_s == pytest.approx((21 / 1.0 + 21 / 2.1) / 2)
    assert row.baseline.request_s == pytest.approx((1.55, 3.0, 3.0))  # eight answers, two of 3 s


def test_the_table_of_settings_shows_what_each_draft_adds_or_why_it_was_not_measured(tmp_path):
    cells = [Cell(1, 3, 1, 4), Cell(2, 3, 4, 16)]
    rows = run(FakeServer(broken=[cells[1]]), tmp_path / "grid.jsonl", cells)
    rows[0] = dataclasses.replace(rows[0], histogram=(5, 3, 0, 2))  # of ten: five accept the first draft, two the third
    table = settings_table(rows)
    assert table["setting"].tolist() == ["chain 3 at one stream", "tree 3 x 4, 16 tokens at 2 streams"]
    assert table["accepted up to draft 1, 2, ..."].tolist() == ["50% / 20% / 20%", "-"]
    assert table["verifications by drafts accepted"].tolist() == ["5 / 3 / 0 / 2", "-"]
    assert table["not measured"].tolist() == ["", "RuntimeError: the server died: out of memory"]
    assert "not measured" not in settings_table(rows[:1])
