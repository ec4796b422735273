"""The packages SpecForge and speculators themselves, from their index, open what we write and write what we open.

Each runs in a process of its own (specforge_judge.py, speculators_judge.py): this Python with the package and what it
imports in a folder of their own, so that nothing of theirs enters the environment.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.specforge import install
from eagle3lab.draft.checkpoint import export_draft
from eagle3lab.draft.foreign import import_draft
from eagle3lab.features.encode import FeatureRow
from eagle3lab.features.foreign import export_specforge, export_speculators, import_speculators
from eagle3lab.features.foreign_read import rms_norm
from eagle3lab.features.store import FeatureStore, FeatureWriter
from tests.draft.samples import A, H, L, V, make_draft, make_row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HERE, T = Path(__file__).parent, 9
AUX_LAYERS = (1, 3, 6)
TARGET = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": L, "hidden_size": H,
    "vocab_size": V, "num_attention_heads": 4, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
}  # fmt: skip
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # float32, sums in another order


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A folder with the pinned packages of packages.txt."""
    folder = tmp_path_factory.mktemp("packages")
    install(folder)
    return folder


@pytest.fixture(scope="module", params=["EAGLE-3.1", "plain"])
def draft(request):
    """As notebook 04 makes it, and without the norms."""
    norms = request.param == "EAGLE-3.1"
    made = make_draft(aux_layers=AUX_LAYERS, fc_norm=norms, norm_output=norms)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "fc_norm" in name:
                weight.uniform_(0.5, 2, generator=torch.Generator().manual_seed(int(name.split(".")[1])))
    return made


@pytest.fixture(scope="module")
def row():
    return make_row(3, T, [(2, T)])


def work_folder(root, draft, row):
    """The target, our drafter, and a row for the judge."""
    (root / "target").mkdir()
    (root / "target" / "config.json").write_text(json.dumps(TARGET))
    generator = torch.Generator().manual_seed(5)
    weights = {
        "model.embed_tokens.weight": draft.embed_VH.clone(),
        "lm_head.weight": torch.randn(V, H, generator=generator),
        "model.norm.weight": torch.empty(H).uniform_(0.5, 2, generator=generator),
    }
    save_file(weights, root / "target" / "model.safetensors", metadata={"format": "pt"})
    export_draft(draft, root / "ours", {}, dtype=torch.float32)
    states = torch.cat([row.aux_TAH, torch.randn(T, 1, H, generator=generator)], dim=1)
    tensors = {"embed": draft.embed_VH.clone(), "ids": row.input_ids_T, "aux": row.aux_TAH.flatten(1), "states": states}
    save_file(tensors, root / "row.safetensors")
    return root


def judge(name, packages, folder, *arguments):
    """Run a judge; what it found."""
    told = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "TORCHDYNAMO_DISABLE": "1"}  # nothing is compiled for one row
    environment = {**os.environ, **told, "PYTHONPATH": str(packages)}
    command = [sys.executable, str(HERE / f"{name}_judge.py"), str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return load_file(folder / "found.safetensors")


@pytest.fixture(scope="module")
def specforge(packages, draft, row, tmp_path_factory):
    """(folder, what SpecForge found in it)."""
    folder = work_folder(tmp_path_factory.mktemp("specforge"), draft, row)
    last_TH = torch.randn(T, H, generator=torch.Generator().manual_seed(6))
    tokens = (row.input_ids_T, row.loss_mask_T, row.aux_TAH, row.last_slots, last_TH[row.last_slots])
    stored = FeatureRow("row-3", "train", "a", *tokens)
    export_specforge([stored], folder / "dump", compress=True)
    return folder, judge("specforge", packages, folder)


@pytest.fixture(scope="module")
def speculators(packages, draft, row, tmp_path_factory):
    """(folder, what speculators found in it)."""
    folder = work_folder(tmp_path_factory.mktemp("speculators"), draft, row)
    norm_H = load_file(folder / "target" / "model.safetensors")["model.norm.weight"]
    export_speculators(stored_rows(norm_H), folder / "exported", norm_H, TARGET["rms_norm_eps"])
    return folder, judge("speculators", packages, folder, *map(str, AUX_LAYERS))


def stored_rows(norm_H):
    """Rows as a store hands them out, their teachers states after the target's final norm."""
    rows = []
    for number, (length, spans) in enumerate([(9, [(2, 9)]), (12, [(3, 6), (8, 11)]), (5, [(4, 5)])]):
        row = make_row(40 + number, length, spans)
        teacher_MH = rms_norm(7 * row.last_MH, norm_H, TARGET["rms_norm_eps"])
        tokens = (row.input_ids_T, row.loss_mask_T, row.aux_TAH, row.last_slots, teacher_MH)
        rows.append(FeatureRow(row.id, "train", "a", *tokens))
    return rows


def our_logits(draft, row):
    y_TH = draft.forward_cached(draft.fuse(row.aux_TAH), row.input_ids_T, torch.arange(T), draft.new_cache(T))
    return draft.logits(y_TH)


def our_two_steps(draft, row):
    """Logits of a chain of two drafts from every slot but the last, [2, T - 1, W]."""
    chains = []
    for slot in range(T - 1):
        seen, ids, cache = slice(slot + 1), row.input_ids_T, draft.new_cache(T)
        first = draft.forward_cached(draft.fuse(row.aux_TAH[seen]), ids[seen], torch.arange(slot + 1), cache)[-1:]
        second = draft.forward_cached(first, ids[slot + 1 : slot + 2], torch.tensor([slot + 1]), cache)
        chains.append(draft.logits(torch.cat([first, second])))
    return torch.stack(chains, dim=1)


def offsets(draft):
    return draft.target_ids_W - torch.arange(len(draft.target_ids_W))


def test_specforge_computes_the_logits_of_our_drafter(specforge, draft, row):
    _, found = specforge
    torch.testing.assert_close(found["logits"], our_logits(draft, row), **CLOSE)
    assert torch.equal(found["d2t"], offsets(draft))


def test_we_compute_the_logits_of_a_drafter_that_specforge_saved(specforge, draft, row):
    folder, found = specforge
    theirs = import_draft(folder / "theirs", folder / "target", draft.embed_VH, list(AUX_LAYERS))
    torch.testing.assert_close(our_logits(theirs, row), found["halved"], **CLOSE)
    assert not torch.allclose(found["halved"], found["logits"])
    assert torch.equal(theirs.target_ids_W, draft.target_ids_W)


def test_specforge_reads_the_features_we_export(specforge, row):
    _, found = specforge
    assert found["dump.tokens"].tolist() == [T] and torch.equal(found["dump.input_ids"], row.input_ids_T)
    assert torch.equal(found["dump.aux_hidden_state"], row.aux_TAH.flatten(1)[None])
    assert found["dump.hidden_state"].shape == (1, T, H) and found["dump.loss_mask"].shape == (T,)


def test_speculators_converts_our_drafter_and_computes_its_logits(speculators, draft, row):
    _, found = speculators
    torch.testing.assert_close(found["converted.logits"][:, :-1], our_two_steps(draft, row), **CLOSE)
    assert torch.equal(found["d2t"], offsets(draft))
    assert tuple(found["target_layer_ids"].tolist()) == AUX_LAYERS


@pytest.mark.parametrize(
    ("draft", "saved", "options"),
    [
        ("EAGLE-3.1", "converted", ()),
        ("EAGLE-3.1", "residual", ("norm_before_residual",)),
        ("plain", "converted", ()),
        ("plain", "residual", ("norm_before_residual",)),
        # what its training turns on by itself
        ("plain", "trained", ("norm_output", "norm_before_residual", "norm_before_fc")),
    ],
    indirect=["draft"],
)
def test_we_compute_the_logits_of_a_drafter_that_speculators_saved(speculators, draft, row, saved, options):
    folder, found = speculators
    theirs = import_draft(folder / saved, folder / "target", draft.embed_VH)  # its config names the layers
    assert theirs.config == dataclasses.replace(
        draft.config, target_architecture="LlamaForCausalLM", **dict.fromkeys(options, True)
    )
    torch.testing.assert_close(our_two_steps(theirs, row), found[f"{saved}.logits"][:, :-1], **CLOSE)
    others = [name for name in ("converted", "residual", "trained") if name != saved and f"{name}.logits" in found]
    assert others
    assert not any(torch.allclose(found[f"{other}.logits"], found[f"{saved}.logits"], atol=0.1) for other in others)


def test_we_read_a_dump_in_fp8_that_speculators_quantised(speculators, row, tmp_path):
    folder, _ = speculators
    writer = FeatureWriter(tmp_path / "store", {"target": "t"}, list(AUX_LAYERS), H)
    summary = import_speculators(folder / "dump", writer, torch.ones(H), 1e-6, lambda _, ids: [[2, len(ids)]])
    writer.close()
    assert (summary.rows, summary.fallen) == (2, [])
    whole, rounded = FeatureStore(tmp_path / "store").rows()
    assert whole.aux_TAH.shape == (T, A, H) and torch.equal(whole.aux_TAH, row.aux_TAH.bfloat16())
    largest = row.aux_TAH.abs().max().item()
    assert (rounded.aux_TAH.float() - row.aux_TAH).abs().max() < largest / 8  # e4m3 has 3 bits behind the point
    assert not torch.equal(rounded.aux_TAH, whole.aux_TAH)


def test_speculators_trains_on_the_features_we_export(speculators):
    folder, found = speculators
    rows = stored_rows(load_file(folder / "target" / "model.safetensors")["model.norm.weight"])
    ids, mask, aux, teacher = (
        found[f"train.{name}"][0] for name in ("input_ids", "loss_mask", "hidden_states", "teacher")
    )
    start, trained = 0, []
    for number, row in enumerate(rows):
        T = len(row.input_ids_T)
        assert torch.equal(ids[start : start + T - 1], row.input_ids_T[1:])  # its shift: x_1, g_0, y_1, l_1
        assert torch.equal(aux[start : start + T - 1], row.aux_TAH.flatten(1)[:-1])
        assert found["train.document_ids"][0, start : start + T - 1].unique().tolist() == [number]
        for slot, state in zip(row.last_slots.tolist(), row.last_MH, strict=True):
            if row.loss_mask_T[slot]:  # x_slot and the token that this state foretells are the answer's
                torch.testing.assert_close(teacher[start + slot - 1], state, **CLOSE)
                trained.append(start + slot - 1)
        start += T - 1
    assert mask.nonzero().flatten().tolist() == trained and len(trained) == 6 + 2 + 2


def test_speculators_learns_nothing_from_states_that_the_store_does_not_have(speculators):
    _, found = speculators
    assert found["train.loss"] > 0 and torch.equal(found["train.loss_untrained_changed"], found["train.loss"])
    assert not torch.allclose(found["train.loss_trained_changed"], found["train.loss"])


def test_speculators_takes_its_draft_vocabulary_from_the_counts_we_export(speculators):
    _, found = speculators
    answers = torch.cat([row.input_ids_T[row.loss_mask_T] for row in stored_rows(torch.ones(H))])
    commonest = sorted(answers.unique().tolist(), key=lambda token: (-int((answers == token).sum()), token))[:5]
    assert (found["train.d2t"] + torch.arange(5)).tolist() == sorted(commonest)
