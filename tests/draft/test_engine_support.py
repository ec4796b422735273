"""A drafter is only exported for an engine that reads all of it."""

import json

import pytest

from eagle3lab.draft.checkpoint import export_draft, load_draft
from eagle3lab.draft.engine_support import EngineError, oldest_releases, require_engine
from tests.draft.samples import make_draft


def test_plain_eagle3_runs_everywhere():
    config = make_draft().config
    assert oldest_releases(config) == {}
    require_engine(config, "sglang==0.4.6")
    require_engine(config, "vllm==0.9.0")
    assert not [name for name in config.to_dict() if "before" in name]  # a training older than these switches goes on


@pytest.mark.parametrize("flag", ["fc_norm", "norm_output"])
def test_eagle31_flags_need_the_release_that_reads_them(tmp_path, flag):
    draft = make_draft(**{flag: True})
    assert oldest_releases(draft.config) == {"sglang": "0.5.12", "vllm": "0.22.0"}
    require_engine(draft.config, "sglang==0.5.12")
    for engine in ("sglang==0.5.11", "sglang==0.5.9.post1", "vllm==0.21.0"):
        with pytest.raises(EngineError, match=f"{flag}.*reads from"):
            export_draft(draft, tmp_path / "draft", {}, engine=engine)
        assert not list(tmp_path.iterdir())
    folder = export_draft(draft, tmp_path / "draft", {})  # the project's own server
    config = json.loads((folder / "config.json").read_text())
    assert config[flag] is True and flag not in config["eagle_config"]  # top level, where both engines look
    assert json.loads((folder / "training.json").read_text())["oldest_engines"]["sglang"] == "0.5.12"
    assert load_draft(folder, draft.embed_VH).config == draft.config


def test_all_that_an_older_engine_lacks_is_named_with_the_way_out():
    draft = make_draft(fc_norm=True, norm_output=True, hidden_size=12)
    with pytest.raises(EngineError) as error:
        require_engine(draft.config, "sglang==0.5.11")
    assert str(error.value) == (
        "the drafter has fc_norm, which sglang reads from 0.5.12 on and norm_output, which sglang reads from 0.5.12 "
        "on; sglang==0.5.11 would ignore it and accept little or nothing. Serve with a newer release, or train without "
        "it (fc_norm: false, norm_output: false)"
    )


def test_what_speculators_turns_on_by_default_is_for_vllm_alone(tmp_path):
    draft = make_draft(norm_before_residual=True, norm_before_fc=True)
    assert oldest_releases(draft.config) == {"sglang": "0.5.17", "vllm": "0.18.0"}
    assert oldest_releases(make_draft(norm_before_residual=True).config) == {"vllm": "0.10.1"}
    require_engine(draft.config, "vllm==0.18.0")
    with pytest.raises(EngineError, match="no release of sglang knows; .* Serve it with vllm, or train"):
        export_draft(draft, tmp_path / "draft", {})
    with pytest.raises(EngineError, match="norm_before_fc, which vllm reads from 0.18.0 on"):
        export_draft(draft, tmp_path / "draft", {}, engine="vllm==0.17.1")
    assert not list(tmp_path.iterdir())
    folder = export_draft(draft, tmp_path / "draft", {}, engine="vllm==0.32.0")
    config = json.loads((folder / "config.json").read_text())
    assert config["norm_before_residual"] is config["norm_before_fc"] is True  # at the top, where vLLM looks
    assert load_draft(folder, draft.embed_VH).config == draft.config


def test_norm_before_fc_alone_is_for_newer_releases_of_both():
    config = make_draft(norm_before_fc=True).config
    assert oldest_releases(config) == {"sglang": "0.5.17", "vllm": "0.18.0"}
    require_engine(config, "sglang==0.5.17")
    with pytest.raises(EngineError, match="norm_before_fc, which sglang reads from 0.5.17 on"):
        require_engine(config, "sglang==0.5.16")


def test_other_widths_and_other_numbers_of_layers():
    assert oldest_releases(make_draft(hidden_size=12).config) == {"sglang": "0.4.8", "vllm": "0.21.0"}
    four = make_draft(aux_layers=(1, 3, 5, 6), fc_norm=True, hidden_size=12)
    assert oldest_releases(four.config) == {"sglang": "0.5.12", "vllm": "0.22.0"}


@pytest.mark.parametrize("engine", ["sglang", "sglang>=0.5.12", "tgi==3.0", "sglang 0.5.23", "sglang==0.5.*", ""])
def test_an_engine_is_named_by_one_release(engine):
    with pytest.raises(ValueError, match="must name one release, such as 'sglang==0.5.23'"):
        require_engine(make_draft().config, engine)
