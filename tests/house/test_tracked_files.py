"""Rules for every file of the repository: size, finished, no trace of a machine, linted."""

import re
import subprocess
import sys

import pytest
from repository import ROOT, repository_files, text_files

LONGEST_FILE = 300  # lines
LARGEST_FILE = 500  # KiB
# written in pieces, so that this file does not hold what it looks for
UNFINISHED = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "NotImplemented" + "Error"]))
MACHINE_PATH = re.compile(r"(?<![\w.$~}])/(tmp|work|root|home|farm|Users)/[\w.]")
REGISTRY_HOST = re.compile(r"\b(" + "|".join([
    "pypi" + r"\.org", "pythonhosted" + r"\.org", "deb" + r"ian\.org", "npm" + r"js\.(org|com)",
    "crates" + r"\.io", "ana" + r"conda\.(org|com)", "download" + r"\.pytorch\.org",
]) + ")")  # fmt: skip


@pytest.mark.parametrize("name", [n for n in repository_files() if n.endswith(".py")])
def test_a_file_of_code_is_short(name):
    lines = (ROOT / name).read_text(encoding="utf-8").count("\n")
    assert lines <= LONGEST_FILE, f"{name} has {lines} lines: split it by what it does"


def test_no_large_file_is_kept():
    large = {name for name in repository_files() if (ROOT / name).stat().st_size > LARGEST_FILE * 1024}
    assert not large


def found(pattern: re.Pattern, texts) -> list[str]:
    """`file:line: text` of every line that the pattern matches."""
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in texts
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_nothing_is_marked_as_unfinished():
    assert found(UNFINISHED, text_files()) == []


def test_no_path_of_a_machine_is_written_down():
    assert found(MACHINE_PATH, text_files()) == []


def test_no_registry_host_is_written_down():
    assert found(REGISTRY_HOST, text_files()) == []


def test_the_searches_find_what_they_look_for():
    text = "see /" + "tmp/x\n$HOME/" + "work/x\na/" + "tmp/b\nhttps://py" + "pi.org/simple\n# TO" + "DO: x"
    lines = [("file", text)]
    assert [hit.split(":")[1] for hit in found(MACHINE_PATH, lines)] == ["1"]
    assert [hit.split(":")[1] for hit in found(REGISTRY_HOST, lines)] == ["4"]
    assert [hit.split(":")[1] for hit in found(UNFINISHED, lines)] == ["5"]


def test_ruff_finds_nothing():
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", "."]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
