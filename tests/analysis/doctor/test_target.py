"""Target folder and draft sizes: the good artefact passes, every planted fault is found."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from eagle3lab.analysis import doctor

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"


def edit(path, **changes):
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


@pytest.fixture
def target(tmp_path):
    """A small folder in the layout of a Hugging Face model with two shards."""
    config = {"num_hidden_layers": 30, "vocab_size": 100, "eos_token_id": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3]}))
    added = [{"id": 2, "content": "<end>"}, {"id": 5, "content": "<turn>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    shards = {"model-00001-of-00002.safetensors": "embed", "model-00002-of-00002.safetensors": "head"}
    for shard, name in shards.items():
        save_file({name: torch.ones(4, 3, dtype=torch.bfloat16), f"{name}.ids": torch.arange(3)}, tmp_path / shard)
    index = {"weight_map": {name: shard for shard, name in shards.items()}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_a_target_that_is_not_there_is_a_row_not_the_end(target):
    assert doctor.find_target(target) == (target.resolve(), [])
    for name in ("./nowhere", str(target / "no")):
        folder, (row,) = doctor.find_target(name)
        assert folder is None and (row.check, row.verdict) == ("target", "fault")
        assert "no such folder" in row.found and row.remedy and "-p target FOLDER" in row.command


def verdicts(rows):
    return {row.check: row.verdict for row in rows}


def test_a_good_target(target):
    rows = doctor.check_target(target)
    assert set(verdicts(rows).values()) == {"ok"}
    assert [row.check for row in rows] == [
        "target files",
        "target weights",
        "aux layers",
        "chat template",
        "end token",
    ]
    assert rows[2].found == "[2, 15, 27]"


def test_missing_folder_and_files(target, tmp_path):
    assert doctor.check_files(tmp_path / "absent").verdict == "fault"
    for name, words in [
        ("model-00002-of-00002.safetensors", "model-00002-of-00002.safetensors is missing"),
        ("tokenizer.json", "no tokenizer file"),
        ("config.json", "no config.json"),
    ]:
        (target / name).unlink()
        (row,) = doctor.check_target(target)  # the other checks wait for whole files
        assert row.verdict == "fault" and words in row.found


def test_files_without_weights(target):
    for file in target.glob("*.safetensors*"):
        file.unlink()
    assert "no safetensors file" in doctor.check_files(target).found


def test_truncated_weights(target):
    shard = target / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-5])
    row = doctor.check_files(target)
    assert row.verdict == "fault" and "model-00001-of-00002.safetensors is damaged" in row.found


def test_config_that_is_no_json(target):
    (target / "config.json").write_text('{"num_hidden_layers": 30,')
    assert "config.json is not JSON" in doctor.check_files(target).found


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(target, value):
    head = torch.ones(4, 3, dtype=torch.bfloat16)
    head[2, 1] = value
    save_file({"head": head}, target / "model-00002-of-00002.safetensors")
    row = doctor.check_finite(target)
    assert row.verdict == "fault"
    assert "head in model-00002-of-00002.safetensors" in row.found


def test_weights_too_large_to_read(target):
    assert doctor.check_finite(target, max_bytes=10).verdict == "not checked"


def test_aux_layers(target):
    assert doctor.check_aux_layers(target, [1, 5, 29]).verdict == "ok"
    assert doctor.check_aux_layers(target, [2, 2, 27]).verdict == "fault"
    assert doctor.check_aux_layers(target, [2, 15, 30]).verdict == "fault"  # hs[30] is the post-norm state
    edit(target / "config.json", num_hidden_layers=6)
    row = doctor.check_aux_layers(target)
    assert row.verdict == "fault" and "[2, 3, 3]" in row.found and "[1, 3, 5]" in row.remedy
    edit(target / "config.json", num_hidden_layers=4)
    assert "[1, 2, 3]" in doctor.check_aux_layers(target).remedy
    edit(target / "config.json", num_hidden_layers=None)
    assert doctor.check_aux_layers(target).verdict == "fault"


def test_aux_layers_of_a_multimodal_config(target):
    edit(target / "config.json", num_hidden_layers=None, text_config={"num_hidden_layers": 61})
    assert doctor.check_aux_layers(target).found == "[2, 30, 58]"


def test_chat_template(target):
    (target / "chat_template.jinja").write_text("{{ messages }}")
    row = doctor.check_chat_template(target)
    assert row.verdict == "warning" and "without add_generation_prompt" in row.found
    (target / "chat_template.jinja").unlink()
    assert doctor.check_chat_template(target).verdict == "fault"
    edit(target / "tokenizer_config.json", chat_template=TEMPLATE)
    assert doctor.check_chat_template(target).verdict == "ok"
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    edit(target / "tokenizer_config.json", chat_template=named)
    assert doctor.check_chat_template(target).verdict == "ok"


def test_end_token(target):
    edit(target / "tokenizer_config.json", eos_token={"content": "<turn>"})
    row = doctor.check_end_token(target)
    assert row.verdict == "warning" and "<turn> (5)" in row.found
    edit(target / "generation_config.json", eos_token_id=[2, 100])
    assert doctor.check_end_token(target).verdict == "fault"
    (target / "generation_config.json").unlink()
    edit(target / "tokenizer_config.json", eos_token="<end>")
    assert doctor.check_end_token(target).found == "[2]"  # from config.json
    edit(target / "config.json", eos_token_id=None)
    row = doctor.check_end_token(target)
    assert row.verdict == "fault" and row.found == "none"


def test_draft_vocabulary():
    counts = np.array([900, 0, 60, 30, 10])  # four distinct ids, the two most frequent make up 96 %
    row = doctor.check_draft_vocabulary(2, counts)
    assert row.verdict == "ok" and "96.0%" in row.found
    assert doctor.check_draft_vocabulary(4, counts).verdict == "ok"
    row = doctor.check_draft_vocabulary(5, counts)
    assert row.verdict == "fault" and "set draft_vocab_size to 4 or less" in row.remedy
    assert doctor.check_draft_vocabulary(1, counts).verdict == "warning"  # 90 %
    assert doctor.check_draft_vocabulary(1, np.zeros(5, int)).verdict == "not checked"


def test_contexts():
    (good,) = doctor.check_contexts(8192, 7680, 512)
    assert (good.check, good.verdict, good.command) == ("context of the target", "ok", "")
    (bad,) = doctor.check_contexts(8192, 7681, 512)
    assert bad.verdict == "fault" and "8,193" in bad.found and bad.command.endswith("-p max_tokens NUMBER")
