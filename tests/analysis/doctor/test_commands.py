"""What the doctor advises, as commands that exist; and the doctor as a command."""

import json
import re
import shlex
from pathlib import Path

import pytest

from eagle3lab.analysis import doctor
from eagle3lab.analysis.doctor import command, run_doctor
from eagle3lab.analysis.doctor.command import parser as command_parser
from eagle3lab.analysis.doctor.commands import COMMANDS, UNCHECKED, UNKNOWN
from eagle3lab.analysis.doctor.examine import AREAS
from eagle3lab.engines.sglang.arguments import launch_arguments
from eagle3lab.workbench.cli import main as cli_main
from eagle3lab.workbench.params import all_parameter_names
from eagle3lab.workbench.stages import STAGES
from tests.analysis.doctor.faults import CASES, PLANTS
from tests.analysis.doctor.plants import absolute
from tests.analysis.doctor.world import World
from tests.hub import only_hub


def test_every_command_names_what_there_is(passed):
    assert {row.check for row in passed} | set(PLANTS) | set(AREAS) <= set(COMMANDS)
    assert set(AREAS) <= set(UNCHECKED)
    sglang = set(re.findall(r"--[a-z-]+", " ".join(launch_arguments(World(Path("w")).spec(), "0.5.23", 1))))
    for text in [*COMMANDS.values(), *UNCHECKED.values()]:
        words = shlex.split(text.format(**UNKNOWN | {"server": "http://s", "layers": [1, 2, 3]}))
        options = {word for word in words if word.startswith("--")}
        if words[:4] == ["python", "-m", "eagle3lab", "run"]:
            named = {words[at + 1] for at, word in enumerate(words) if word == "-p"}
            assert named <= all_parameter_names(), text
            assert {words[at + 1] for at, word in enumerate(words) if word in ("--only", "--from")} <= set(STAGES)
            assert options <= {"--only", "--from", "--force"}
        elif words[:4] == ["python", "-m", "eagle3lab", "doctor"]:
            assert options <= set(command_parser()._option_string_actions), text
        elif words[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]:
            assert words[3:6] == ["--model", "TARGET", "--speculative-config"]
            assert json.loads(words[6])["model"] == "DRAFT"
        elif words[:2] == ["python", "-c"]:
            assert words[2].endswith("print(doctor.check_finite('TARGET', 2**60))")
        elif words[0] == "python":
            assert words[2] == "sglang.launch_server" and options <= sglang | {"--tokenizer-path"}, text
        else:
            assert words == ["curl", "http://s/health"]


def test_commands_name_what_was_given(world):
    world.edit_tensors(absolute)
    rows = run_doctor(world.subject(server="http://127.0.0.1:9", spec=world.spec(algorithm="EAGLE")))
    by_check = {row.check: row for row in rows if row.verdict != "ok"}
    assert by_check["draft d2t"].command == "python -m eagle3lab run PROFILE --from training --force"
    assert by_check["server"].command == "curl http://127.0.0.1:9/health"
    (layers,) = [row for row in run_doctor(doctor.Subject(world.target, [2, 2, 5])) if row.check == "aux layers"]
    assert layers.command.endswith('-p aux_layers "[2, 4, 5]"')  # a target of 8 layers
    expected = (
        f"--model-path {world.target} --speculative-draft-model-path {world.draft} --speculative-algorithm EAGLE3"
    )
    assert by_check["launch flag"].command.endswith(expected)


def commands(rows, beginning=""):
    """check -> command of the rows that are not ok, and whose check begins so."""
    return {row.check: row.command for row in rows if row.verdict != "ok" and row.check.startswith(beginning)}


def test_what_was_not_checked_is_asked_for_and_nothing_is_made_anew(good):
    s = good.subject(vocab_map=None, target=None, spec=None, server=None, benchmark=None, parity=None)
    rows = [row for row in run_doctor(s) if row.verdict != "ok"]
    assert {row.verdict for row in rows} == {"not checked"} and len(rows) >= 15
    found = commands(rows)
    draft = f"python -m eagle3lab doctor --target TARGET --draft {good.draft}"
    assert found["draft vocabulary as extracted"] == f"{draft} --vocab-map runs/ID/vocab_map.safetensors"
    assert found["draft head rows"] == found["draft for its target"] == draft
    assert found["answers' ends"] == f"python -m eagle3lab doctor --target TARGET --corpus {good.corpus}"
    assert found["server"] == f"{draft} --server URL" and found["spec"] == f"{draft} --launch"
    assert found["features recaptured"].endswith(f"--features {good.features} --recapture")
    assert found["parity"] == "python -m eagle3lab run PROFILE --only diagnostics"
    assert all(found.values()) and not [text for text in found.values() if "--force" in text or "--from" in text]
    (parity,) = [row for row in rows if row.check == "parity"]
    assert "05_diagnostics" in parity.remedy


@pytest.mark.parametrize("area", AREAS)
def test_an_area_that_was_not_given_has_no_command_that_makes_it_anew(good, area):
    (row,) = [row for row in run_doctor(good.subject(**{area: None})) if row.check == area]
    assert row.verdict == "not checked" and row.command and "--force" not in row.command


def test_a_target_with_code_of_its_own_is_looked_at_with_it_again(good):
    rows = run_doctor(doctor.Subject(good.target, features=good.features, trust_remote_code=True))
    found = commands(rows)["features recaptured"]
    assert found.endswith(f"--features {good.features} --recapture --trust-remote-code")


DRAFT_PLANTS = [(name, number) for name, number in CASES if name.startswith("draft") and name != "draft vocabulary"]


@pytest.mark.parametrize(("name", "number"), DRAFT_PLANTS, ids=[f"{name} {number}" for name, number in DRAFT_PLANTS])
def test_a_drafter_of_others_is_never_trained_again(world, name, number):
    changes = PLANTS[name][number](world)
    (world.draft / "training.json").unlink()
    rows = run_doctor(world.subject(**changes if isinstance(changes, dict) else {}))
    found = commands([row for row in rows if row.check != "draft vocabulary"], "draft")
    again = f"python -m eagle3lab doctor --target {world.target} --draft {world.draft}"
    assert found and not [text for text in found.values() if "--force" in text or "--from" in text]
    if name == "draft d2t":
        assert found["draft d2t"] == again
    assert all(text.startswith((again, "python -m vllm")) for check, text in found.items() if check != "draft RoPE")


def arguments(world: World, *more: str) -> list[str]:
    named = ("target", "prepared", "corpus", "features", "vocab_map", "draft", "benchmark")
    given = [text for name in named for text in (f"--{name.replace('_', '-')}", str(getattr(world, name)))]
    return [*given, "--launch", "--max-running-requests", "16", "--recapture", *more]


def test_the_command_ends_well_and_writes_a_table(good, capsys):
    assert command.main(arguments(good)) == 0
    text = capsys.readouterr().out
    assert "ok          draft d2t: offsets into the target's ids" in text
    assert "not checked not given: server, parity\n" in text
    assert "ok          features recaptured: 4 rows, worst hs[2] " in text
    assert text.strip().endswith("0 warning, 0 fault, 2 not checked")


def test_the_command_says_fault_by_its_exit_code_and_in_json(world, capsys):
    world.edit_tensors(absolute)
    assert command.main(arguments(world, "--json")) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["verdicts"]["fault"] >= 1
    (row,) = [row for row in content["checks"] if row["check"] == "draft d2t"]
    assert row["verdict"] == "fault" and row["remedy"] == "store target id - draft id"
    assert row["command"] == "python -m eagle3lab run PROFILE --from training --force"
    assert command.main(arguments(world)) == 1
    assert capsys.readouterr().out.startswith("FAULT ")  # what is to be mended stands first


def test_the_command_refuses_what_it_cannot_read(good, capsys):
    assert command.main(["--launch"]) == 2
    assert "--launch needs --target" in capsys.readouterr().err
    assert command.main(["--target", str(good.root / "nowhere")]) == 2
    assert command.main(["--target", str(good.target), "--launch", "--topk", "4"]) == 2
    with pytest.raises(SystemExit):
        command.main(["--features", str(good.features), "--recapture"])
    assert "--recapture needs --target and --features" in capsys.readouterr().err


def test_the_help_tells_of_the_doctor_of_a_profile(capsys):
    with pytest.raises(SystemExit):
        cli_main(["doctor", "--help"])
    text = capsys.readouterr().out
    assert "doctor PROFILE" in text and "--recapture" in text and "--only diagnostics" in text
    with pytest.raises(SystemExit):
        cli_main(["doctor", "--json", "demo"])
    assert "a profile goes without options: python -m eagle3lab doctor demo" in capsys.readouterr().err


def test_a_published_drafter_and_its_target_go_by_their_hub_names(good, tmp_path, monkeypatch, capsys):
    repos = {"someone/EAGLE3-tiny": good.draft, "someone/tiny": good.target}
    with only_hub(repos, monkeypatch, tmp_path / "home"):
        assert command.main(["--target", "someone/tiny", "--draft", "someone/EAGLE3-tiny"]) == 0
        assert "ok          draft d2t: offsets into the target's ids" in capsys.readouterr().out
        assert command.main(["--draft", "someone/nothing"]) == 2
        assert "drafter 'someone/nothing' could not be found" in capsys.readouterr().err
