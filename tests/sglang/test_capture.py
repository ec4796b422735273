"""States captured inside a real server are those of transformers, whatever the server cut, mixed, or died of.

Shapes: T tokens, A aux layers, H hidden.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from eagle3lab.engines.base import Request
from eagle3lab.engines.servers.errors import ServerGone
from eagle3lab.engines.sglang.assemble import RowError
from eagle3lab.engines.sglang.blocking import generate_all
from eagle3lab.engines.sglang.capture import (
    CaptureRow,
    capture_json,
    capture_states,
    capture_to_store,
    durable_ids,
)
from eagle3lab.engines.sglang.capture_files import StoreSpec
from eagle3lab.engines.sglang.capture_session import CaptureError
from eagle3lab.engines.sglang.server import SGLangServer
from eagle3lab.features.store import FeatureStore, finish_store
from tests.engines.story import STORY
from tests.sglang.capture_cases import CASES, CHUNK, Case, Reference, error, rows, server_spec, target_folder

pytestmark = pytest.mark.sglang

LENGTHS = [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 12, 100, 7, 2 * CHUNK + 1]
FLOAT32 = 1e-4


@dataclass
class Running:
    """A float32 server of a case, and transformers' word on its target."""

    case: Case
    server: SGLangServer
    folder: Path
    reference: Reference

    def store(self, folder: Path, shard_tokens: int = 65536) -> StoreSpec:
        hidden = self.reference.states([0])[0].shape[-1]
        return StoreSpec(str(folder), {"target": self.case.name}, self.case.layers, hidden, shard_tokens, "float32")

    def check(self, input_ids, aux_TAH, last_TH=None) -> None:
        states = self.reference.states(input_ids)
        assert aux_TAH.shape[:2] == (len(input_ids), len(self.case.layers))
        for a, layer in enumerate(self.case.layers):
            assert error(aux_TAH[:, a], states[layer]) < FLOAT32, f"hs[{layer}]"
        if last_TH is not None:
            assert error(last_TH, states[-1]) < FLOAT32


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def running(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param.name)
    target = target_folder(request.param, folder)
    spec = server_spec(request.param, target, folder / "capture")
    with SGLangServer(spec, log=folder / "server.log") as server:
        yield Running(request.param, server, folder / "capture", Reference(target))


def test_all_states_of_rows_of_different_length_come_back_while_others_decode(running):
    sent = dict(rows(running.reference.vocab_size, LENGTHS))
    others = [Request(row_id, ids, 30) for row_id, ids in rows(running.reference.vocab_size, [5, 40, 9], seed=1)]
    answers = []
    decoding = Thread(target=lambda: answers.extend(generate_all(running.server.url, others)))
    decoding.start()
    found = list(capture_states(running.server.url, running.folder, sent.items(), concurrency=5))
    decoding.join()
    assert sorted(len(answer.output_ids) for answer in answers) == [30, 30, 30]
    assert sorted(features.id for features in found) == sorted(sent)
    for features in found:
        assert features.input_ids_T.tolist() == sent[features.id]
        assert features.aux_TAH.dtype == features.last_TH.dtype == torch.float32
        running.check(sent[features.id], features.aux_TAH, features.last_TH)


def test_the_json_route_says_the_same_and_refuses_what_it_would_get_in_part(running):
    sent = dict(rows(running.reference.vocab_size, [n for n in LENGTHS if n <= CHUNK]))
    found = dict(capture_json(running.server.url, sent.items(), concurrency=1))
    assert sorted(found) == sorted(sent)
    for row_id, aux_TE in found.items():
        running.check(sent[row_id], aux_TE.unflatten(-1, (len(running.case.layers), -1)))
    longer = rows(running.reference.vocab_size, [CHUNK + 1])
    with pytest.raises(RowError, match=rf"'row {CHUNK + 1}:0'.*only the last piece of a chunked prefill"):
        list(capture_json(running.server.url, longer))


def test_the_store_holds_what_transformers_computes_and_too_long_rows_are_named(running, tmp_path):
    sent = {
        row_id: CaptureRow(row_id, ids, [[len(ids) // 2, len(ids)]], "test", "random")
        for row_id, ids in rows(running.reference.vocab_size, LENGTHS)
    }
    long = CaptureRow("too long", [1] * 3000)
    report = capture_to_store(
        running.server.url,
        running.folder,
        [*sent.values(), long],
        running.store(tmp_path / "store", 100),
        concurrency=8,
    )
    assert (report.rows, report.tokens, report.skipped) == (len(LENGTHS), sum(LENGTHS), 0)
    assert list(report.errors) == ["too long"] and "refuses it (400)" in report.errors["too long"]
    finish_store(tmp_path / "store", sent)
    store = FeatureStore(tmp_path / "store")
    assert sorted(store.ids) == sorted(sent)
    for row in store.rows():
        wanted = sent[row.id]
        running.check(wanted.input_ids, row.aux_TAH)
        states = running.reference.states(wanted.input_ids)
        slots = [t for t in range(len(wanted.input_ids) - 1) if t + 1 >= len(wanted.input_ids) // 2]
        assert row.last_slots.tolist() == slots and (row.split, row.set) == ("test", "random")
        if slots:
            assert error(row.last_MH, states[-1][slots]) < FLOAT32


def test_a_store_of_other_layers_is_refused_before_a_row_is_sent(running, tmp_path):
    spec = running.store(tmp_path / "store")
    other = StoreSpec(spec.folder, spec.fingerprint, [layer + 1 for layer in spec.aux_layers], spec.hidden_size)
    with pytest.raises(CaptureError, match="captures aux_layers"):
        capture_to_store(running.server.url, running.folder, [CaptureRow("a", [1, 2])], other)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("running", CASES[:1], indirect=True, ids=lambda case: case.name)
def test_after_kill_9_a_new_server_captures_the_rest_and_the_store_equals_an_undisturbed_one(running, tmp_path):
    sent = [CaptureRow(row_id, ids, [[0, len(ids)]]) for row_id, ids in rows(running.reference.vocab_size, LENGTHS * 6)]
    whole, killed = running.store(tmp_path / "whole", 150), running.store(tmp_path / "killed", 150)
    capture_to_store(running.server.url, running.folder, sent, whole)

    def kill(report):
        if report.rows == len(sent) // 2:
            os.killpg(running.server.pid, signal.SIGKILL)

    with pytest.raises(ServerGone):
        capture_to_store(running.server.url, running.folder, sent, killed, concurrency=4, on_row=kill)
    kept = durable_ids(tmp_path / "killed")
    assert 0 < len(kept) < len(sent)

    running.server.restart()
    report = capture_to_store(running.server.url, running.folder, sent, killed, concurrency=4)
    assert (report.rows, report.skipped, report.errors) == (len(sent) - len(kept), len(kept), {})
    stores = []
    for spec in (whole, killed):
        finish_store(spec.folder, [row.id for row in sent])
        stores.append(FeatureStore(spec.folder))
    assert sorted(stores[0].ids) == sorted(stores[1].ids) == sorted(row.id for row in sent)
    for row_id in stores[0].ids:
        a, b = stores[0].row(row_id), stores[1].row(row_id)
        assert torch.equal(a.input_ids_T, b.input_ids_T) and torch.equal(a.last_slots, b.last_slots)
        assert error(b.aux_TAH, a.aux_TAH) < FLOAT32 and error(b.last_MH, a.last_MH) < FLOAT32


def test_bfloat16_states_are_as_near_as_transformers_own_in_bfloat16(tmp_path):
    (case,) = [case for case in CASES if case.name == "smollm2"]
    target = target_folder(case, tmp_path)
    ids = AutoTokenizer.from_pretrained(target)(STORY)["input_ids"][:100]
    exact = Reference(target).states(ids)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16, attn_implementation="eager").eval()
    with torch.inference_mode():
        rounded = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    spec = server_spec(case, target, tmp_path / "capture", dtype="bfloat16")
    with SGLangServer(spec, log=tmp_path / "server.log") as server:
        (features,) = capture_states(server.url, tmp_path / "capture", [("story", ids)])
    assert features.aux_TAH.dtype == torch.bfloat16

    def of_row(found_TH, expected_TH):
        return float((found_TH.float() - expected_TH).norm() / expected_TH.norm())

    for a, layer in enumerate(case.layers):
        assert of_row(features.aux_TAH[:, a], exact[layer]) < 0.01
    found = [*features.aux_TAH.unbind(1), features.last_TH]
    for found_TH, k in zip(found, [*case.layers, len(exact) - 1], strict=True):
        assert of_row(found_TH, exact[k]) < 1.5 * of_row(rounded[k][0], exact[k])
