"""What is refused before it costs anything: sets that cannot be read, a study of more data than there is."""

import json
import os

import pytest

from eagle3lab.workbench import runner
from eagle3lab.workbench.cli import main
from eagle3lab.workbench.files import write_json_atomic
from eagle3lab.workbench.params import ParameterError
from eagle3lab.workbench.records import all_records
from eagle3lab.workbench.runner import run_chain


def test_a_set_whose_adapter_is_unknown_is_refused_at_once(lab, capsys):
    lab.notebook("data_prep", "sets: list[str] = []  # sets\n")
    lab.layer("common", 'profile: tiny\nsets: ["mine:mesages:data/mine.jsonl"]\n')
    for command in ("plan", "run"):
        assert main([command, "tiny", "--only", "data_prep"]) == 2
        told = capsys.readouterr()
        assert "set 'mine' (data/mine.jsonl): unknown adapter 'mesages' (did you mean 'messages'?)" in told.err
        assert "known: bfcl, conversations, " in told.err and told.out == ""
    lab.notebook("data_prep", "sets: list[str] = []  # sets\n", "ADAPTERS['mesages'] = lambda row, name: row")
    (lab.root / "data").mkdir()
    (lab.root / "data" / "mine.jsonl").touch()
    assert main(["plan", "tiny", "--only", "data_prep"]) == 0  # one of the reader's own
    assert "Not there" not in capsys.readouterr().out


def test_a_set_whose_file_is_not_there_is_told_in_the_plan_and_refused_by_a_run(lab, capsys, monkeypatch):
    lab.notebook("data_prep", "sets: list[str] = []  # sets\n")
    lab.layer("common", "profile: tiny\nsets: ['mine:messages:data/mine.jsonl', 'other:prompts:hub:a/b', glaive]\n")
    told = f"set 'mine': no file or folder at {lab.root}/data/mine.jsonl; put it there, or mend the path in `sets`"
    assert main(["plan", "tiny", "--only", "data_prep"]) == 0
    plan_says = capsys.readouterr().out.split("Not there yet, and `run` starts nothing without it\n")[1]
    assert " ".join(plan_says.split()).startswith(told)
    assert main(["run", "tiny", "--only", "data_prep", "inference"]) == 2
    assert f"refused: {told}" in (shown := capsys.readouterr().err) and "'other'" not in shown and "glaive" not in shown
    assert lab.folders() == []
    (lab.root / "data").mkdir()
    (lab.root / "data" / "mine.jsonl").touch()
    monkeypatch.chdir(lab.root / "data")  # paths count from the root, not from here
    assert main(["plan", "tiny", "--only", "data_prep"]) == 0
    assert "Not there" not in capsys.readouterr().out


def test_data_that_changed_make_another_run_and_data_that_did_not_are_not_read_again(lab, capsys, monkeypatch):
    def execute(stage, output, *_):
        for name in ("manifest.json", "results.json"):
            write_json_atomic(output.parent / name, {})
        return "ok", None

    monkeypatch.setattr(runner, "execute", execute)
    lab.notebook("data_prep", "sets: list[str] = []  # sets\n")
    lab.layer("common", "profile: tiny\n")
    data = lab.root / "data"
    data.mkdir()
    (data / "mine.jsonl").write_text("{}\n")
    sets = {"sets": ["mine:messages:data/mine.jsonl", "folder:messages:data", "other:prompts:hub:a/b", "glaive"]}
    assert [one.ran for one in (run_chain("tiny", ["data_prep"], sets) + run_chain("tiny", ["data_prep"], sets))] == [
        True, False,
    ]  # fmt: skip
    (data / "mine.jsonl").write_text("[]\n")  # of the same length
    os.utime(data / "mine.jsonl", ns=(1, 1))
    assert main(["plan", "tiny", "--only", "data_prep", "-p", "sets", json.dumps(sets["sets"])]) == 0
    assert "the files of its sets changed" in capsys.readouterr().out
    (data / "more.jsonl").touch()  # in the folder alone
    first, second = (run_chain("tiny", ["data_prep"], {"sets": [one]}) for one in sets["sets"][:2])
    (data / "more.jsonl").write_text("{}\n")
    assert not run_chain("tiny", ["data_prep"], {"sets": sets["sets"][:1]})[0].ran
    assert run_chain("tiny", ["data_prep"], {"sets": sets["sets"][1:2]})[0].ran and first[0].ran and second[0].ran


@pytest.mark.parametrize(("vary", "most"), [("rows", 20), ("tokens", 900)])
def test_amounts_above_the_data_are_refused_before_the_training(lab, capsys, monkeypatch, vary, most):
    def execute(stage, output, *_):
        results = {"train_rows": 20, "tokens": 900} if stage.name == "extraction" else {}
        for name, content in (("manifest.json", {}), ("results.json", results)):
            write_json_atomic(output.parent / name, content)
        return "ok", None

    monkeypatch.setattr(runner, "execute", execute)
    for stage in ("extraction", "training", "serving"):
        lab.notebook(stage, "")
    lab.notebook("scaling", f"vary: str = {vary!r}  # what\namounts: list[float] = [10.0, {most + 1}.0]  # of it\n")
    chain = ["data_prep", "inference", "extraction", "training", "serving", "scaling"]
    with pytest.raises(
        ParameterError, match=rf"amounts = \[10.0, {most + 1}.0\]: tiny-ext\S+ holds no more than {most} {vary}"
    ):
        run_chain("tiny", chain)
    assert [record["stage"] for record in all_records(lab.root / "runs")] == chain[:3]
    assert main(["plan", "tiny", "--only", *chain]) == 2  # it is known now
    assert f"holds no more than {most} {vary}; name smaller amounts" in capsys.readouterr().err
    results = run_chain("tiny", chain, {"amounts": [10.0, float(most)]})
    assert [(result.state, result.ran) for result in results] == [("ok", stage not in chain[:3]) for stage in chain]
