"""A stand-in for a capturing server: HTTP in front, a CaptureWriter behind, states that tell their tokens."""

from unittest.mock import patch

import torch

from eagle3lab.engines.sglang import capture
from eagle3lab.engines.sglang.attach import parse_server_info
from eagle3lab.engines.sglang.capture import CaptureRow
from eagle3lab.engines.sglang.capture_files import StoreSpec
from eagle3lab.engines.sglang.capture_writer import CaptureWriter, Pass
from eagle3lab.features.store import FeatureStore, finish_store
from tests.engines.fake_server import FakeServer, Status, echo

A, H = 3, 4
LAYERS = [2, 4, 5]
CUT = 5  # tokens a pass: longer rows come in pieces


def states(ids, width):
    """What this target computes: exact in bfloat16 for small ids, another value for every token and place."""
    return torch.tensor(ids).float()[:, None] + torch.arange(width) / 64


ARGUMENTS = {"version": "0.5.23", "model_path": "t", "enable_return_aux_hidden_states": True}
ARGUMENTS |= {"disable_radix_cache": True}


class Target(FakeServer):
    """A server whose forward passes end in a CaptureWriter, as the plugin's do. `spoil(body, start, pass)` may change
    a pass, drop it (None) or raise."""

    def __init__(self, folder, spoil=lambda body, start, item: item, pid=1, queue_passes=4):
        super().__init__(self.answer)
        self.spoil, self.writer = spoil, CaptureWriter(folder, pid, queue_passes)
        # HTTP here is POST only: what a GET would tell
        self._patch = patch.object(capture, "server_info", lambda url: parse_server_info(url, ARGUMENTS, {}))

    def answer(self, body, attempt):
        ids = body["input_ids"]
        for start in range(0, len(ids), CUT):
            part = ids[start : start + CUT]
            item = Pass(
                [body["rid"]], [start], [len(part)], torch.tensor(part), states(part, A * H), states(part, H)
            )  # fmt: skip
            item = self.spoil(body, start, item)
            if isinstance(item, Status):
                return item
            if item is not None and self.writer.capturing:
                self.writer.put(item)
        return echo(body)

    def __enter__(self):
        self._patch.start()
        self.writer.start()
        return super().__enter__()

    def __exit__(self, *failure):
        super().__exit__(*failure)
        self.writer.stop()
        self._patch.stop()


def corpus(count=12):
    rows = []
    for number in range(count):
        ids = [1 + (number * 7 + place) % 50 for place in range(2 + number)]
        rows.append(CaptureRow(f"set/{number}", ids, [[1, len(ids)]], "train" if number % 3 else "test", "set"))
    return rows


def spec(tmp_path, **changes):
    return StoreSpec(**{
        "folder": str(tmp_path / "store"), "fingerprint": {"target": "t"}, "aux_layers": LAYERS, "hidden_size": H,
        "shard_tokens": 20, "codec": "float32", **changes,
    })  # fmt: skip


def check_store(folder, rows):
    """The store holds exactly these rows, with the states that the target computed."""
    finish_store(folder, [row.id for row in rows])
    store = FeatureStore(folder)
    assert sorted(store.ids) == sorted(row.id for row in rows)
    for row in rows:
        found = store.row(row.id)
        assert found.input_ids_T.tolist() == row.input_ids
        assert (found.split, found.set) == (row.split, row.set)
        assert torch.equal(found.aux_TAH, states(row.input_ids, A * H).view(-1, A, H))
        assert torch.equal(found.last_MH, states(row.input_ids, H)[:-1])
