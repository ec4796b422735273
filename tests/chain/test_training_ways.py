"""The smoke profile's extraction and training in their other ways: a damaged shard, no store, two processes."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file

from eagle3lab.draft.state import checkpoints
from eagle3lab.features.finish import DamagedShardError
from eagle3lab.features.layout import quarantine_folder
from eagle3lab.features.store import FeatureStore
from eagle3lab.workbench.runner import run_chain

pytestmark = pytest.mark.notebooks


@pytest.fixture
def runs_dir(smoke_chain, tmp_path):
    """The chain's runs up to the extraction, to go on from in another way."""
    for stage in ("data_prep", "inference", "extraction"):
        folder = smoke_chain.folder(stage)
        shutil.copytree(folder, tmp_path / folder.name)
    return tmp_path


def run(runs_dir, stages, **changes):
    results = run_chain("smoke", stages, overrides={"runs_dir": str(runs_dir), **changes})
    assert [result.state for result in results] == ["ok"] * len(stages), results[-1].error
    return [result.folder for result in results]


def results(folder):
    return json.loads((folder / "results.json").read_text())


def printed(folder, notebook):
    cells = json.loads((folder / notebook).read_text())["cells"]
    return "".join("".join(output.get("text", "")) for cell in cells for output in cell.get("outputs", []))


def test_a_damaged_shard_is_named_and_its_rows_are_captured_again(smoke_chain, runs_dir):
    folder = runs_dir / smoke_chain.folder("extraction").name / "features"
    shards = sorted(folder.glob("shard-*.safetensors"))
    assert len(shards) > 2
    damaged, others = shards[1], {path: path.stat().st_mtime_ns for path in (shards[0], *shards[2:])}
    data = bytearray(damaged.read_bytes())
    data[-100] ^= 1
    damaged.write_bytes(data)
    store = FeatureStore(folder)
    before = {row_id: store.index(row_id)["shard"] for row_id in store.ids}
    with pytest.raises(DamagedShardError, match=damaged.name) as error:
        list(store.rows())
    assert set(error.value.row_ids) == {row_id for row_id, shard in before.items() if shard == damaged.name}

    [again] = run(runs_dir, ["extraction"])  # the same run, which the runner finds to lack files
    assert again == folder.parent
    assert all(path.stat().st_mtime_ns == written for path, written in others.items())
    assert (quarantine_folder(folder) / damaged.name).exists()
    mended, whole = FeatureStore(folder), FeatureStore(smoke_chain.folder("extraction") / "features")
    assert set(mended.ids) == set(whole.ids) and len(list(mended.rows())) == len(before)
    for row_id in error.value.row_ids:
        a, b = mended.row(row_id).aux_TAH.float(), whole.row(row_id).aux_TAH.float()
        assert (a - b).norm() < 1e-3 * b.norm()  # float32 in another batch, rounded to bfloat16


def test_training_without_a_store_learns_what_training_with_one_does(smoke_chain, runs_dir):
    extraction, training = run(runs_dir, ["extraction", "training"], features="live", epochs=3)
    assert {path.name for path in (extraction / "features").iterdir()} == {"live.json", "rows.jsonl"}
    [stored] = run(runs_dir, ["training"], epochs=3, extraction_run=smoke_chain.results["extraction"].run_id)
    live, kept = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (training, stored)
    )
    # the same rows in the same order; states differ by the target's rounding in batches of another shape
    assert [row["step"] for row in live] == [row["step"] for row in kept]
    assert [row["tokens_seen"] for row in live] == [row["tokens_seen"] for row in kept]
    assert [row["loss"] for row in live] == pytest.approx([row["loss"] for row in kept], rel=2e-2)
    one, other = (load_file(folder / "draft" / "model.safetensors") for folder in (training, stored))
    for name in ("fc.weight", "lm_head.weight"):
        assert (one[name].float() - other[name].float()).norm() < 0.05 * other[name].float().norm()


def test_two_processes_best_weights_and_long_rows_from_the_notebook(runs_dir):
    changes = {
        "processes": 2, "accumulate": 2, "sharded": True, "epochs": 6, "heldout_rows": 6, "evaluate_every": 10,
        "export_best": True, "max_length": 64, "fc_norm": False, "norm_output": False, "step_decay": 0.9,
    }  # fmt: skip
    [folder] = run(runs_dir, ["training"], **changes)
    told = results(folder)
    counts = told["row_counts"]
    assert counts["rows"] == 60 and counts["cut"] > 0 and counts["windows"] >= counts["cut"]
    assert counts["whole"] + counts["cut"] + counts["untrained"] == 60
    measured = [
        row["heldout_accept_length"]
        for row in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        if "heldout_accept_length" in row
    ]
    assert len(measured) >= 2 and told["best"]["accept_length"] == max(measured) == told["exported"]["accept_length"]
    [best] = folder.glob("checkpoints/best-*/weights.safetensors")
    exported = load_file(folder / "draft" / "model.safetensors")
    for name, weight in load_file(best).items():
        assert torch.equal(exported[name], weight.bfloat16()), name
    config = json.loads((folder / "draft" / "config.json").read_text())
    assert "fc_norm" not in config and "norm_output" not in config
    assert not [name for name in exported if "fc_norm" in name]
    assert (folder / "checkpoints" / "stream.jsonl").exists()  # what two processes wrote
    log = (folder / "checkpoints" / "processes.log").read_text()
    held = [int(count.replace(",", "")) for count in re.findall(r"process . of 2 holds (\S+) weights", log)]
    assert len(held) == 2 and sum(held) == told["weights"] and max(held) < 0.6 * told["weights"]  # split, not copied
    assert int(checkpoints(folder / "checkpoints")[-1].name.removeprefix("step-")) == told["steps"]
    assert "starting at step 0" in printed(folder, "04_training.ipynb")
