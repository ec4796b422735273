"""Parameters: the syntax tree, the layers, strict types, nearest names, impossible combinations."""

import ast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.workbench.constraints import violations
from eagle3lab.workbench.layers import LayerError, common_names
from eagle3lab.workbench.notebooks import NotebookError, check_runnable
from eagle3lab.workbench.params import (
    CommandLineText,
    ParameterError,
    read_parameters,
    resolve_parameters,
    share_overrides,
    stage_parameters,
)
from eagle3lab.workbench.types import TypeMismatch, fit, from_text, parse_annotation, yaml_number


def declared(annotation):
    return parse_annotation(ast.parse(annotation, mode="eval").body)


def test_reads_what_papermills_own_parser_misses(lab):
    path = lab.notebook(
        "training",
        "from typing import Literal\n"
        "lr: float = 1.0e-4  # rate = step size\n"
        'mode: Literal["strict", "loose"] = "strict"  # mask\n'
        'note: str | None = "a # b"  # text with a hash\n'
        "sizes: list[int] = [\n    1,\n    2,\n]  # sizes\n",
    )
    found = {param.name: param for param in read_parameters(path)}
    assert list(found) == ["profile", "runs_dir", "extraction_run", "lr", "mode", "note", "sizes"]
    assert found["lr"].default == 0.0001 and found["lr"].comment == "rate = step size"
    assert found["note"].default == "a # b" and found["note"].comment == "text with a hash"
    assert found["sizes"].default == [1, 2] and found["sizes"].comment == "sizes"
    assert str(found["mode"].declared) == "Literal['strict', 'loose']"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x = 3", "write `name: type = literal"),
        ("x: int = 2 * y", "plain literal"),
        ("x: int = 2.5", "wanted int"),
        ("x: tuple = (1,)", "not supported"),
        ("words: int = 1\nwords: int = 2", "stands twice"),
        ("x: int = 3 +", "not Python"),
    ],
)
def test_a_parameters_cell_holds_typed_literals_only(lab, line, message):
    path = lab.notebook("data_prep", line)
    with pytest.raises(ParameterError, match=message):
        read_parameters(path)


def test_layers_and_origins(lab):
    lab.layer("data_prep", "lr: 2.0e-3\n")
    found = resolve_parameters("data_prep", "tiny", {"suite": CommandLineText("mt_bench")})
    assert found.values["words"] == 4 and found.origins["words"] == "params/tiny/common.yaml"
    assert found.values["lr"] == 0.002 and found.origins["lr"] == "params/tiny/data_prep.yaml"
    assert found.values["suite"] == "mt_bench" and found.origins["suite"] == "command line"
    assert found.origins["runs_dir"] == "cell default"
    assert "words" not in resolve_parameters("inference", "tiny").values


def test_yaml_number_read_as_text_is_refused_with_the_way_out(lab):
    assert yaml.safe_load("1e-4") == "1e-4"  # the trap itself
    lab.layer("data_prep", "lr: 1e-4\n")
    with pytest.raises(ParameterError, match=r"data_prep.yaml: lr: '1e-4' is text, wanted float: write 1.0e-4"):
        resolve_parameters("data_prep", "tiny")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("words: 010\n", "line 1: 010 is not a plain decimal"),
        ("suite: yes\n", "line 1: yes is read as a truth value"),
        ("words: 1\nwords: 2\n", "line 2: words stands twice"),
        ("- words\n", "name: value"),
        ("words: [1\n", "is not YAML"),
        ("profile: tiny\n", "belongs in common.yaml"),
    ],
)
def test_yaml_surprises_are_refused(lab, text, message):
    lab.layer("data_prep", text)
    with pytest.raises(LayerError, match=message):
        resolve_parameters("data_prep", "tiny")


def test_nearest_right_names(lab):
    lab.layer("data_prep", "wrods: 3\n")
    with pytest.raises(ParameterError, match=r"data_prep.yaml: unknown parameter 'wrods' \(did you mean 'words'\?\)"):
        resolve_parameters("data_prep", "tiny")
    with pytest.raises(ParameterError, match="did you mean 'times'"):
        share_overrides(["data_prep", "inference"], {"tims": 3})
    with pytest.raises(LayerError, match="did you mean 'tiny'"):
        resolve_parameters("inference", "tyni")
    with pytest.raises(ValueError, match="did you mean 'training'"):
        resolve_parameters("trainig", "tiny")


def test_files_of_a_profile(lab):
    lab.layer("common", "profile: tiny\ntimse: 4\n")
    with pytest.raises(ParameterError, match="common.yaml: unknown parameter 'timse'.*'times'"):
        resolve_parameters("data_prep", "tiny")
    lab.layer("common", "words: 4\n")
    with pytest.raises(LayerError, match="must hold the line `profile: tiny`"):
        resolve_parameters("data_prep", "tiny")
    lab.layer("common", "profile: tiny\n")
    lab.layer("data-prep", "words: 4\n")
    with pytest.raises(LayerError, match="named after no stage.*'data_prep'"):
        resolve_parameters("data_prep", "tiny")


def test_a_profile_stands_on_another_one(lab):
    lab.layer("data_prep", "lr: 2.0e-3\nsuite: whole\n")
    lab.layer("inference", "times: 7\n")
    lab.layer("common", "profile: small\nextends: tiny\nlr: 5.0e-3\n", "small")
    lab.layer("data_prep", "suite: part\n", "small")
    found = resolve_parameters("data_prep", "small")
    # what it says itself, though in common.yaml, goes before what the other one says for the stage
    assert (found.values["words"], found.values["lr"], found.values["suite"]) == (4, 0.005, "part")
    assert found.origins["lr"] == "params/small/common.yaml" and found.origins["words"] == "params/tiny/common.yaml"
    assert found.values["profile"] == "small"
    assert resolve_parameters("inference", "small").values["times"] == 7
    assert resolve_parameters("data_prep", "tiny").values["lr"] == 0.002
    assert common_names("small") == {"profile", "extends", "lr", "words"}


def test_a_profile_that_stands_on_nothing_or_on_itself_is_refused(lab):
    lab.layer("common", "profile: small\nextends: tyni\n", "small")
    with pytest.raises(LayerError, match="no profile 'tyni'.*did you mean 'tiny'"):
        resolve_parameters("data_prep", "small")
    lab.layer("common", "profile: small\nextends: tiny\n", "small")
    lab.layer("common", "profile: tiny\nextends: small\n")
    with pytest.raises(LayerError, match="stands on itself: small extends tiny extends small"):
        resolve_parameters("data_prep", "small")
    lab.layer("common", "profile: tiny\n")
    lab.layer("data_prep", "extends: tiny\n")
    with pytest.raises(ParameterError, match="unknown parameter 'extends'"):
        resolve_parameters("data_prep", "tiny")


def test_overrides_go_to_the_stages_that_know_them(lab):
    shared = share_overrides(["data_prep", "inference"], {"times": 3, "runs_dir": "x"})
    assert shared == {"data_prep": {"runs_dir": "x"}, "inference": {"times": 3, "runs_dir": "x"}}
    with pytest.raises(ParameterError, match="chosen by the command"):
        resolve_parameters("data_prep", "tiny", {"profile": "other"})


def test_every_stage_must_have_its_upstream_parameters(lab):
    path = lab.notebook("inference", "")
    path.write_text(path.read_text().replace("data_prep_run: str", "data_prep_ran: str"))
    with pytest.raises(ParameterError, match="lacks the parameter `data_prep_run: str`"):
        stage_parameters("inference")


def test_impossible_combinations_are_refused_before_a_kernel(lab):
    with pytest.raises(ParameterError, match="lr = 2.0: must lie between 0 and 1"):
        resolve_parameters("data_prep", "tiny", {"lr": 2})
    assert violations({"engine": "embedded", "topk": 4}) == [
        "engine = 'embedded', topk = 4: the embedded engine drafts chains: topk must be 1"
    ]
    assert not violations({"engine": "sglang", "topk": 4})
    assert violations({"engine": "sglang", "codec": "fp8+top16"})
    assert not violations({"engine": "embedded", "codec": "fp8+top16"})
    (refused,) = violations({"codec": "fp9"})
    assert refused.startswith("codec = 'fp9': is none of float32, bf16, fp8, nor two parts")
    assert violations({"amounts": [100, 100]}) and not violations({"amounts": [100, 200]})
    assert violations({"amounts": [0, 100]}) and violations({"amounts": [200, 100]})
    assert violations({"vary": "rows", "amounts": [1.5]}) and not violations({"vary": "lr", "amounts": [0.001, 0.002]})
    assert violations({"train_seeds": [0, 0]}) and violations({"train_seeds": [-1]})
    assert not violations({"train_seeds": [0, 1]})
    assert violations({"num_steps": [3, 0]}) and not violations({"num_steps": [1, 3]})
    assert violations({"topk": 1, "num_steps": 3, "num_draft_tokens": 8})
    assert not violations({"draft_vocab_size": None, "aux_layers": None})
    assert violations({"sharded": True, "processes": 1}) and not violations({"sharded": False, "processes": 1})
    assert not violations({"sharded": True, "processes": 2})
    assert violations({"processes": 2, "accumulate": 1}) and not violations({"processes": 2, "accumulate": 3})
    assert violations({"export_best": True, "heldout_rows": 0})
    assert not violations({"export_best": True, "heldout_rows": 2})


@pytest.mark.parametrize(
    ("wrong", "right", "told"),
    [
        ({"grid_topk": [1, 4], "grid_draft_tokens": []}, {"grid_topk": [1, 4], "grid_draft_tokens": [8]}, "trees"),
        (
            {"grid_concurrency": [1, 64], "bench_prompts": 32, "second_turns": False},
            {"grid_concurrency": [1, 64], "bench_prompts": 32, "second_turns": True},  # each prompt is asked twice
            "at least as many requests as the largest concurrency",
        ),
        (
            {"grid_concurrency": [1], "grid_topk": [1], "grid_temperatures": [], "grid_cuda_graphs": [True]},
            {"grid_concurrency": [], "grid_topk": [1], "grid_temperatures": [], "grid_cuda_graphs": [True]},
            "at least one value of each",
        ),
        (
            {"engine": "embedded", "grid_concurrency": [1, 2], "grid_topk": [1]},
            {"engine": "sglang", "grid_concurrency": [1, 2], "grid_topk": [1]},
            "one request at a time",
        ),
        ({"servers": ["http://a:1"], "beside": "none"}, {"servers": ["http://a:1"], "concurrency": 150}, "needs two"),
        ({"servers": ["http://a:1"] * 3, "beside": "none"}, {"servers": ["a", "b"], "beside": "none"}, "without a dr"),
        ({"grid_concurrency": [0]}, {"grid_concurrency": []}, "grid_concurrency = 0: must be at least 1"),
        ({"grid_temperatures": [-0.1]}, {"grid_temperatures": [0.0]}, "must be at least 0"),
        ({"long_concurrency": 0}, {"long_concurrency": 1}, "must be at least 1"),
        ({"draft_head_dim": 0}, {"draft_head_dim": None}, "must be at least 1"),
        ({"draft_head_dim": 63}, {"draft_head_dim": 64}, "must be even"),
    ],
)
def test_values_that_would_end_a_stage_late_are_refused(wrong, right, told):
    [line] = violations(wrong)
    assert told in line and violations(right) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--speculative-algorithm", "EAGLE"], ["--speculative-algorithm=EAGLE"], ["--speculative-alg", "EAGLE"],
        ["--tp-size", "8", "--model-path", "m"], ["--port=1"], ["--dtype", "half"], ["--disable-cuda-graph"],
    ],
)  # fmt: skip
def test_a_flag_that_the_workbench_writes_is_refused_among_the_servers_options(words):
    [line] = violations({"server_options": words})
    assert line.startswith(f"server_options = {words!r}: --speculative-*, --model-path, ")
    assert "the later one would win" in line
    assert violations({"server_options": ["--tp-size", "8", "--cuda-graph-max-bs-decode", "150"]}) == []
    assert violations({"vllm_options": ["--speculative-config", "{}"]}) and violations({"vllm_options": ["-sc", "{}"]})
    assert violations({"vllm_options": ["--max-num-seqs", "2", "--enforce-eager"]}) == []


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("bool", "true"), ("bool", 1), ("int", True), ("int", 2.0), ("int", "2"), ("float", True),
        ("float", float("inf")), ("str", 3), ("list[int]", (1, 2)), ("list[int]", [1, "2"]),
        ("int | None", "none"), ('Literal["a", "b"]', "c"), ("dict[str, int]", {"a": 1.5}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(annotation, value):
    with pytest.raises(TypeMismatch):
        fit(value, declared(annotation))


def test_what_fits_keeps_its_value():
    assert fit(1, declared("float")) == 1.0 and type(fit(1, declared("float"))) is float
    assert fit(None, declared("str | None")) is None
    assert fit([1, 2], declared("list[float]")) == [1.0, 2.0]
    assert fit("b", declared('Literal["a", "b"]')) == "b"


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("3e-4", "float", 0.0003), ("1e5", "float", 100000.0), ("010", "int", 10), ("true", "bool", True),
        ("False", "bool", False), ("none", "int | None", None), ("12", "int | None", 12), ("12", "str", "12"),
        ("none", "str | None", None), ("x", "str | None", "x"), ("[1, 2]", "list[int]", [1, 2]),
        ("4", "Literal[2, 4]", 4), ("2", "list[int]", [2]), ("1e-4", "list[float]", [0.0001]),
        ("a:b:c.jsonl", "list[str]", ["a:b:c.jsonl"]), ("2", "list[str]", ["2"]), ("none", "list[str] | None", None),
    ],
)  # fmt: skip
def test_command_line_text_is_read_as_the_declared_type(text, annotation, value):
    found = from_text(text, declared(annotation))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "annotation"),
    [
        ("1", "bool"), ("1.5", "int"), ("nan", "float"), ("[1", "list[int]"), ("x", "list[int]"),
        ("{a: 1}", "list[str]"),
    ],
)  # fmt: skip
def test_command_line_text_that_is_no_such_type(text, annotation):
    with pytest.raises(TypeMismatch):
        from_text(text, declared(annotation))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_spelling_given_as_a_hint_is_a_float_in_yaml(value):
    read = yaml.safe_load(yaml_number(value))
    assert type(read) is float and read == value


def test_notebooks_papermill_would_run_wrongly_are_refused(lab):
    with pytest.raises(NotebookError, match="kernelspec 'julia'"):
        check_runnable(lab.notebook("data_prep", "", kernel="julia"))
    with pytest.raises(NotebookError, match="asyncio.run"):
        check_runnable(lab.notebook("data_prep", "", "import asyncio\nasyncio.run(main())"))
    path = lab.notebook("data_prep", "", "x = 1")
    path.write_text(path.read_text().replace('"parameters"', '"injected-parameters"'))
    with pytest.raises(NotebookError, match="0 cells tagged 'parameters'"):
        check_runnable(path)
