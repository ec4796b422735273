"""Where a drafter is: a folder here, or a repository of a hub, downloaded by its real client."""

import json

import pytest
import torch

from eagle3lab.draft.checkpoint import CheckpointError, export_draft
from eagle3lab.draft.foreign import find_draft, open_draft
from tests.draft.samples import L, make_draft, pickle_tensors
from tests.hub import only_hub

NAME = "someone/EAGLE3-tiny"


@pytest.fixture
def draft():
    return make_draft()


@pytest.fixture
def published(tmp_path, draft):
    """As EAGLE's authors publish: a pickle of tensors, no word of layers."""
    folder = export_draft(draft, tmp_path / "published", {}, dtype=torch.float32)
    pickle_tensors(folder)
    (folder / "training.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in config.items() if not key.startswith("eagle_")}
    (folder / "config.json").write_text(json.dumps(kept | {"architectures": ["LlamaForCausalLM"]}))
    return folder


@pytest.fixture
def hub(published, tmp_path, monkeypatch):
    with only_hub({NAME: published}, monkeypatch, tmp_path / "home") as hub:
        yield hub


@pytest.fixture
def target(tmp_path, draft):
    folder = tmp_path / "target"
    folder.mkdir()
    sizes = {"num_hidden_layers": L, "hidden_size": draft.config.hidden_size, "vocab_size": draft.config.vocab_size}
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **sizes}))
    return folder


def test_a_published_drafter_is_downloaded_and_opened(hub, draft, target):
    opened = open_draft(find_draft(NAME), target, draft.embed_VH)
    assert all(torch.equal(one, other) for one, other in zip(opened.parameters(), draft.parameters(), strict=True))
    asked = len(hub.requests)
    assert find_draft(NAME).is_dir() and len(hub.requests) == asked  # from the cache


def test_a_folder_here_goes_before_the_hub(hub, published, tmp_path):
    (tmp_path / "someone").mkdir()
    published.rename(tmp_path / NAME)
    assert find_draft(NAME, tmp_path) == tmp_path / NAME
    assert find_draft(tmp_path / NAME, "elsewhere") == tmp_path / NAME
    assert not hub.requests


def test_a_repository_without_weights_is_refused_with_all_that_was_tried(hub, published):
    (published / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError) as refused:
        find_draft(NAME, "here")
    for words in (f"drafter '{NAME}' could not be found", f"- folder here/{NAME}: not there", "- hub cache: ",
                  "- hub: StoredError: ", "no *.safetensors and no pytorch_model*.bin", "Give the path"):  # fmt: skip
        assert words in str(refused.value)


def test_a_path_that_is_no_name_is_not_looked_for(hub):
    with pytest.raises(CheckpointError, match=r"drafter '\./nowhere': no such folder"):
        find_draft("./nowhere")
    assert not hub.requests
