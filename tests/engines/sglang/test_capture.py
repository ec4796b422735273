"""Capture through a stand-in of a server: sessions, rows, errors."""

import pytest
import torch

from eagle3lab.engines.servers.errors import RequestRefused
from eagle3lab.engines.sglang.attach import parse_server_info
from eagle3lab.engines.sglang.capture import capture_states, capture_to_store
from eagle3lab.engines.sglang.capture_files import CaptureFolder, Order, take_lock
from eagle3lab.engines.sglang.capture_session import CaptureError, check_capturing
from eagle3lab.engines.sglang.capture_writer import Pass
from eagle3lab.features.checks import NonFiniteStateError
from tests.engines.capture_target import ARGUMENTS, CUT, A, H, Target, check_store, corpus, spec, states
from tests.engines.fake_server import Status


def test_rows_are_stored_whole_and_a_second_session_captures_only_what_is_new(tmp_path):
    rows, seen = corpus(), []
    with Target(tmp_path / "capture") as server:
        first = capture_to_store(server.url, tmp_path / "capture", rows[:8], spec(tmp_path), concurrency=3)
        asked = len(server.bodies)
        second = capture_to_store(
            server.url,
            tmp_path / "capture",
            [*rows, rows[0]],
            spec(tmp_path),
            on_row=lambda report: seen.append(report.rows),
        )
    assert [path.name for path in (tmp_path / "capture").glob("rows-*")] == ["rows-3.jsonl"]  # the first one's is gone
    assert (first.rows, first.skipped, first.errors) == (8, 0, {})
    assert first.tokens == sum(len(row.input_ids) for row in rows[:8])
    assert asked == 8 and len(server.bodies) == 12
    assert (second.rows, second.skipped, second.errors, seen) == (4, 9, {}, [1, 2, 3, 4])
    check_store(tmp_path / "store", rows)


def test_rows_that_cannot_be_captured_are_named_and_the_others_stored(tmp_path):
    rows = corpus()
    nan, cached, refused = rows[3], rows[9], rows[5]

    def spoil(body, start, item):
        if body["input_ids"] == nan.input_ids:
            item.aux_NE[1, H] = float("nan")
        if body["input_ids"] == cached.input_ids and start == 0:
            return None
        return Status(400, "too long") if body["input_ids"] == refused.input_ids else item

    with Target(tmp_path / "capture", spoil) as server:
        report = capture_to_store(server.url, tmp_path / "capture", rows, spec(tmp_path))
    assert set(report.errors) == {nan.id, cached.id, refused.id}
    assert "hs[4] is NaN" in report.errors[nan.id]
    assert "prefix cache" in report.errors[cached.id]
    assert "too long" in report.errors[refused.id]
    assert report.rows + len(report.errors) == len(rows)
    check_store(tmp_path / "store", [row for row in rows if row.id not in report.errors])


def test_a_row_of_which_the_end_never_came_is_an_error_that_says_so(tmp_path):
    rows = corpus(10)
    whole = [row for row in rows if len(row.input_ids) <= CUT]
    with Target(tmp_path / "capture", lambda body, start, item: item if start == 0 else None) as server:
        report = capture_to_store(server.url, tmp_path / "capture", rows, spec(tmp_path))
    assert set(report.errors) == {row.id for row in rows} - {row.id for row in whole}
    assert "'set/9': only 5 of 11 tokens" in report.errors["set/9"]
    check_store(tmp_path / "store", whole)


def test_other_layers_than_the_stores_stop_the_session_at_once(tmp_path):
    with Target(tmp_path / "capture") as server:
        with pytest.raises(CaptureError, match="captures 3 layers of size 4, the feature store wants 2 of size 4"):
            capture_to_store(server.url, tmp_path / "capture", corpus(), spec(tmp_path, aux_layers=[2, 4]))


def test_a_store_made_from_something_else_is_refused_by_field(tmp_path):
    with Target(tmp_path / "capture") as server:
        capture_to_store(server.url, tmp_path / "capture", corpus(3), spec(tmp_path))
        with pytest.raises(CaptureError, match="target: the store has 't', expected 'u'"):
            capture_to_store(server.url, tmp_path / "capture", corpus(3), spec(tmp_path, fingerprint={"target": "u"}))
        capture_to_store(server.url, tmp_path / "capture", corpus(5), spec(tmp_path))
    check_store(tmp_path / "store", corpus(5))


def test_exact_states_come_back_row_by_row_and_leave_no_files(tmp_path):
    rows = [(row.id, row.input_ids) for row in corpus()]
    with Target(tmp_path / "capture") as server:
        found = {features.id: features for features in capture_states(server.url, tmp_path / "capture", rows)}
    assert set(found) == {row_id for row_id, _ in rows}
    for row_id, ids in rows:
        features = found[row_id]
        assert features.input_ids_T.tolist() == ids and features.input_ids_T.dtype == torch.int64
        assert torch.equal(features.aux_TAH, states(ids, A * H).view(-1, A, H))
        assert torch.equal(features.last_TH, states(ids, H))
    assert not list((tmp_path / "capture").glob("states-*"))


def test_exact_states_raise_what_is_wrong_with_a_row(tmp_path):
    rows = [(row.id, row.input_ids) for row in corpus(6)]

    def spoil(body, start, item):
        item.last_NH[0, 0] = float("inf")
        return item if body["input_ids"] != rows[0][1] else Status(400, "no such token")

    with Target(tmp_path / "capture", spoil) as server:
        with pytest.raises(NonFiniteStateError, match="'set/4': the last hidden state is NaN or infinite in 2 of 6"):
            list(capture_states(server.url, tmp_path / "capture", rows[4:5]))
        with pytest.raises(RequestRefused, match="'set/0'.*no such token"):
            list(capture_states(server.url, tmp_path / "capture", rows[:1]))


def test_requests_of_others_are_not_captured(tmp_path):
    with Target(tmp_path / "capture") as server:
        stranger = Pass(["HEALTH_CHECK"], [0], [1], torch.tensor([1]), states([1], A * H), states([1], H))
        capture_to_store(
            server.url, tmp_path / "capture", corpus(3), spec(tmp_path), on_row=lambda _: server.writer.put(stranger)
        )
    assert server.writer.status.foreign == 3
    check_store(tmp_path / "store", corpus(3))


def test_no_server_two_servers_and_a_second_client_are_told_apart(tmp_path):
    def run(url):
        capture_to_store(url, tmp_path / "capture", corpus(3), spec(tmp_path))

    with Target(tmp_path / "another") as server:
        with pytest.raises(CaptureError, match="no server captures into"):
            run(server.url)
    with Target(tmp_path / "capture") as server:
        with take_lock(tmp_path / "capture" / "client.lock"):
            with pytest.raises(CaptureError, match="another client captures"):
                run(server.url)
        with Target(tmp_path / "capture", pid=2):
            with pytest.raises(CaptureError, match="several servers"):
                run(server.url)
        run(server.url)


def test_a_new_server_does_not_obey_an_order_of_before_its_start(tmp_path):
    folder = CaptureFolder(tmp_path / "capture")
    folder.write_order(Order(7, "begin", 7))
    with Target(tmp_path / "capture") as server:
        assert folder.living()[0].answered == 7 and not server.writer.capturing
        capture_to_store(server.url, tmp_path / "capture", corpus(3), spec(tmp_path))
    check_store(tmp_path / "store", corpus(3))


def test_a_server_that_was_started_otherwise_is_refused_before_anything_is_sent(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 8, "hidden_size": 4, "vocab_size": 9}'
    )

    def info(**changes):
        return parse_server_info("u", {**ARGUMENTS, "model_path": str(tmp_path), **changes}, {})

    check_capturing(info(), [2, 4, 5])
    check_capturing(info(return_aux_hidden_state_layer_ids=[0, 3, 6]), [1, 4, 7])
    for given, layers, text in (
        (info(enable_return_aux_hidden_states=False), None, "captures no states"),
        (info(disable_radix_cache=False), None, "prefix cache"),
        (info(), [1, 4, 7], r"captures aux_layers \[2, 4, 5\], wanted are \[1, 4, 7\]"),
        (info(return_aux_hidden_state_layer_ids=[1, 4, 7]), [1, 4, 7], r"captures aux_layers \[2, 5, 8\]"),
    ):
        with pytest.raises(CaptureError, match=text):
            check_capturing(given, layers)


def test_a_top_k_teacher_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(ValueError, match="codec='fp8\\+top16' needs the target's output head"):
        capture_to_store("http://127.0.0.1:1", tmp_path / "capture", corpus(3), spec(tmp_path, codec="fp8+top16"))
