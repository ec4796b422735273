"""Faults planted in a trained drafter behind the real server: the first of the ranked causes is the fault.

Every fault is a server of its own, started in spite of the guards; what it accepted is compared with the simulation of
the good drafter, and the causes are ranked from that and from what the server says of itself.
"""

import json
import shutil
import warnings
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3lab.analysis.doctor import causes_excluded, causes_shown
from eagle3lab.analysis.doctor.serving import check_server
from eagle3lab.analysis.heldout import capture_answers
from eagle3lab.analysis.parity import compare
from eagle3lab.analysis.suspects import suspects
from eagle3lab.draft.checkpoint import export_draft, load_draft
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.start import new_draft
from eagle3lab.draft.target_weights import read_target_weights
from eagle3lab.draft.train import Trainer
from eagle3lab.draft.vocab import VocabMap
from eagle3lab.engines.base import Request
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.sglang.blocking import generate_all
from eagle3lab.engines.sglang.model_files import read_draft
from eagle3lab.engines.sglang.server import SGLangServer
from tests.engines.story import greedy_answers
from tests.sglang.conftest import ANSWER, TRAINED_PROMPTS

pytestmark = [pytest.mark.sglang, pytest.mark.slow]
STEPS, AT_ONCE = 3, 6
LAYERS = [1, 2]  # of four: the layers beside them are there too


@pytest.fixture(scope="module")
def requests(story_prompts):
    return [Request(f"r{i}", ids, ANSWER) for i, ids in enumerate(story_prompts)]


@pytest.fixture(scope="module")
def story_embedded(story):
    return engine_of(story, 0)


@pytest.fixture(scope="module")
def answers(story_embedded, story_prompts):
    return greedy_answers(story_embedded, story_prompts, ANSWER)


@pytest.fixture(scope="module")
def rows(story_embedded, answers):
    return list(capture_answers(story_embedded, answers, 1024))


@pytest.fixture(scope="module")
def pruned_draft(story, rows, tmp_path_factory):
    """A drafter that knows nine of ten ids of its training text, so that it has a d2t, and norms far from one."""
    weights, folder = read_target_weights(story), tmp_path_factory.mktemp("pruned")
    trained = {row.id: row for row in rows if int(row.id[1:]) < 2 * TRAINED_PROMPTS}
    seen = torch.cat([row.input_ids_T for row in trained.values()]).unique()
    vocab = VocabMap(seen[torch.arange(len(seen)) % 10 != 4], len(weights.head_VH))
    draft = new_draft(story, LAYERS, vocab, weights, seed=0)
    with torch.no_grad():
        draft.midlayer.hidden_norm.weight.copy_(torch.linspace(0.3, 3.0, draft.config.hidden_size))
    recipe = Recipe(ttt_steps=STEPS, epochs=60, batch_tokens=512, compute_dtype="float32")
    lengths = {key: len(row.input_ids_T) for key, row in trained.items()}
    trainer = Trainer(draft, lengths, trained.__getitem__, weights.head_VH, recipe, folder / "state")
    for _ in trainer.run(checkpoint_every=10**6, log_every=10**6):
        pass
    return export_draft(draft, folder / "draft", {"trained_length": 128}, dtype=torch.float32)


# ---- plants: a good folder -> what a server is started with ----------------------------------------------------


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder, change):
    path = folder / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in change(load_file(path)).items()}, path)


def renamed(tensors):
    return {name.replace("midlayer.", "decoder."): tensor for name, tensor in tensors.items()}


def absolute(tensors):
    ids_W = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    most = len(tensors["t2d"]) - 1  # the server would fail on an id beyond the vocabulary
    return tensors | {"d2t": (ids_W + torch.arange(len(ids_W))).clamp(max=most) - torch.arange(len(ids_W))}


def permuted(tensors):
    return tensors | {"lm_head.weight": tensors["lm_head.weight"].roll(7, 0)}


def dropped(name):
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def one_layer_later(folder):
    # SGLang's id k is hs[k + 1] of a Llama
    edit_config(folder, eagle_config={"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": LAYERS})


def tensors(change):
    return lambda folder: edit_tensors(folder, change)


def config(**changes):
    return lambda folder: edit_config(folder, **changes)


# name -> cause, a word of its name, what is done to the folder
FAULTS = {
    "flag EAGLE": ("flag", "", lambda folder: None),
    "layers off by one": ("layers", "later", one_layer_later),
    "d2t absolute": ("vocabulary map", "target ids", tensors(absolute)),
    "d2t missing": ("vocabulary map", "no d2t", tensors(dropped("d2t"))),
    "lm_head permuted": ("vocabulary map", "another order", tensors(permuted)),
    "RoPE theta": ("rope", "", config(rope_theta=500000.0)),
    "hidden_norm missing": ("norm", "hidden_norm", tensors(dropped("midlayer.hidden_norm.weight"))),
    "norm_output": ("norm", "norm_output", config(norm_output=True)),
    "layer named for another engine": ("tensors", "", tensors(renamed)),
    "other template": ("template", "", lambda folder: None),
}


def serve(spec, folder, requests, fault, log):
    """(what the server says of itself, its answers), by a server of its own."""
    spec = replace(spec, draft=str(folder), num_steps=STEPS, algorithm="EAGLE" if fault == "flag EAGLE" else None)
    if fault == "other template":
        requests = [replace(request, input_ids=[request.input_ids[0], *request.input_ids]) for request in requests]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the guards' words
        with SGLangServer(spec, log=log, unguarded=True) as server:
            options = {"concurrency": AT_ONCE, "ordered": True, "end_ids": ()}
            return server.info(), list(generate_all(server.url, requests, **options))


@pytest.fixture(scope="module")
def ranked(story, story_spec, story_embedded, pruned_draft, answers, rows, requests, tmp_path_factory):
    """fault ("" is none) -> the comparison."""
    draft = load_draft(pruned_draft, story_embedded.embed_VH)
    beside = {
        f"layers: one layer {words}": list(capture_answers(engine_of(story, by), answers, 1024))
        for by, words in ((1, "later"), (-1, "earlier"))
    }
    candidates = suspects(draft, beside, story_embedded.lm_head_VH.detach())
    found = {}
    for number, fault in enumerate(["", *FAULTS]):
        folder = shutil.copytree(pruned_draft, tmp_path_factory.mktemp(f"fault{number}") / "draft")
        if fault:
            FAULTS[fault][2](folder)
        info, done = serve(story_spec, folder, requests, fault, folder.parent / "server.log")
        told = check_server(info, read_draft(folder))
        facts, excluded = causes_shown(told), causes_excluded(told)
        found[fault] = compare(draft, rows, done, STEPS, candidates, facts, excluded)
    return found


def engine_of(folder, shift):
    return EmbeddedEngine(folder, aux_layers=[k + shift for k in LAYERS], end_ids=())


def test_the_good_drafter_is_served_as_simulated(ranked):
    assert ranked[""].equal, str(ranked[""])


def test_the_first_ranked_cause_is_the_planted_one(ranked):
    first = {fault: ranked[fault].causes[0] for fault in FAULTS}
    right = [
        fault for fault, (cause, word, _) in FAULTS.items()
        if first[fault].cause == cause and word in first[fault].name
    ]  # fmt: skip
    for fault, cause in first.items():
        print(f"{'right' if fault in right else 'WRONG'}  {fault}: {cause.cause} ({cause.name}); {cause.why}")
    assert len(right) >= 8, f"only {right}"
