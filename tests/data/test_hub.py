"""Downloads from a hub, with its real client and a hub on this machine: whole, checked, kept, and never half."""

from pathlib import Path

import pytest

from eagle3lab.data.hub import is_hub_name, snapshot
from eagle3lab.data.targets import TargetError, resolve_target
from tests.hub import only_hub

NAME = "someone/model"


@pytest.fixture
def published(tmp_path):
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 4}')
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 10)
    (folder / "README.md").write_text("not asked for")
    return folder


@pytest.fixture
def hub(published, tmp_path, monkeypatch):
    with only_hub({NAME: published}, monkeypatch, tmp_path / "home") as hub:
        yield hub


def fetch(check=lambda folder: None, local_only=False):
    return snapshot(NAME, ["*.json", "*.safetensors"], check, local_only)


def test_what_was_asked_for_comes_whole_and_stays(hub, published):
    assert isinstance(fetch(local_only=True), str)
    folder = fetch()
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors"}
    for file in folder.iterdir():
        assert file.read_bytes() == (published / file.name).read_bytes()
    asked = len(hub.requests)
    assert fetch(local_only=True) == folder and len(hub.requests) == asked


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_was_damaged_on_the_way_is_named_and_fetched_again(hub, published, name):
    hub.damaged = {name}
    assert fetch() == f"damaged on the way: {name}; try again"
    hub.damaged = set()
    assert (fetch() / name).read_bytes() == (published / name).read_bytes()


def test_a_folder_that_is_not_what_was_wanted_is_no_folder(hub):
    def check(folder: Path):
        raise ValueError(f"no tokenizer in {folder.name}")

    assert "ValueError: no tokenizer in" in fetch(check)


def test_a_target_that_lacks_its_tokenizer_is_refused_with_all_that_was_tried(hub):
    with pytest.raises(TargetError, match=r"(?s)- hub cache.*- registry packages.*- hub: .* has no tokenizer"):
        resolve_target(NAME)


def test_a_name_nobody_has_is_told(hub):
    assert "RepositoryNotFoundError" in snapshot("nobody/nothing", ["*"], lambda folder: None, local_only=False)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("a/b", True), ("a", False), ("a/b/c", False), ("./b", False), ("../b", False), ("/b", False), ("~/b", False)],
)
def test_what_a_hub_name_looks_like(name, is_one):
    assert is_hub_name(name) == is_one
