"""Features belong to one target: its weights, its tokenizer and its chat template, as far as they are known."""

import dataclasses
import shutil

import pytest
import torch

from eagle3lab.data.fingerprint import target_fingerprint
from eagle3lab.features.layout import FeatureStoreError
from eagle3lab.features.store import FeatureWriter
from tests.data.conftest import CHATML, _make_tokenizer
from tests.tiny import HIDDEN


@pytest.fixture
def complete(job, tmp_path):
    """The job with a target that has a tokenizer and a template, and features of it that say so."""
    folder = tmp_path / "target"
    shutil.copytree(job.target, folder)
    tokenizer = _make_tokenizer()
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    writer = FeatureWriter(tmp_path / "features", target_fingerprint(folder) | {"corpus": "abc"}, [2, 4, 5], HIDDEN)
    for i in range(6):
        writer.add(f"r{i}", list(range(9)), [[3, 9]], torch.randn(9, 3, HIDDEN), torch.randn(9, HIDDEN))
    writer.close()
    paths = {"target": folder, "features": tmp_path / "features", "folder": tmp_path / "state"}
    return dataclasses.replace(job, heldout_rows=0, evaluate_every=None, **paths)


def other_template(folder):
    (folder / "chat_template.jinja").write_text("Be kind. " + CHATML)


def other_tokenizer(folder):
    tokenizer = _make_tokenizer()
    tokenizer.chat_template = CHATML
    tokenizer.add_tokens(["unheard-of"])
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize("change", [other_template, other_tokenizer], ids=lambda change: change.__name__)
def test_features_of_another_tokenizer_or_template_stop_a_job(complete, change):
    """The same weights and shapes: the ids of the features would mean other text."""
    complete.trainer()
    change(complete.target)
    with pytest.raises(FeatureStoreError, match="features was made from something else:\n  template: the store has"):
        complete.trainer()
