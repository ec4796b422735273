"""The folder for a hub, from the runs of nine real notebooks."""

import pytest
from huggingface_hub import ModelCard

from eagle3lab.data.targets import resolve_target
from eagle3lab.draft.checkpoint import load_draft
from eagle3lab.draft.target_weights import read_target_weights
from eagle3lab.workbench.card import training_run, write_hub_folder

pytestmark = pytest.mark.notebooks


def test_a_drafter_with_its_card_is_a_drafter_and_tells_what_was_measured(smoke_chain, tmp_path):
    run = training_run("smoke", smoke_chain.runs_dir)
    assert run.id == smoke_chain.results["training"].run_id
    folder = write_hub_folder(run, tmp_path / "hub")
    load_draft(folder, read_target_weights(resolve_target("glassllm/en")).embed_VH)
    card = ModelCard.load(folder / "README.md")
    assert card.data.base_model == "glassllm/en" and card.data.license is None
    accept = smoke_chain.read("diagnostics", "results.json")["accept_length_simulated"]
    low, high = accept["interval"]
    shown = (
        f"| all | {accept['prompts']} | simulated, trained | {accept['accept_length']:.2f} | {low:.2f} to {high:.2f} |"
    )
    assert shown in card.text
    best = smoke_chain.read("serving", "results.json")["best"]
    assert f"--speculative-num-steps {best['num_steps']} " in card.text
    assert f"x{best['speedup']:.2f}" in card.text
    assert "Not measured yet" not in card.text
    for stage in ("data_prep", "inference", "extraction", "training", "diagnostics", "serving", "scaling"):
        assert smoke_chain.results[stage].run_id in card.text
