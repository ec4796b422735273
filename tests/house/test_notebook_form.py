"""The form that every notebook has: it opens the same way, stays short, defines nothing and is stripped."""

import ast
import json
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from repository import NOTEBOOKS, ROOT, notebook_cells

from eagle3lab.workbench.params import read_parameters, stage_parameters
from eagle3lab.workbench.stages import STAGES

MOST_CODE_CELLS, MOST_LINES = 14, 15
MOST_PARAMETERS = 52  # a line each, in the parameters cell
PRESENT = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
every_notebook = pytest.mark.parametrize("label", PRESENT)


def code(label: str) -> list[tuple[str, dict]]:
    return [(source, cell) for kind, source, cell in notebook_cells(label) if kind == "code"]


def is_parameters(cell: dict) -> bool:
    return "parameters" in cell["metadata"].get("tags", [])


def test_the_nine_notebooks_are_there_and_no_other():
    assert PRESENT == NOTEBOOKS
    assert [stage.label for stage in STAGES.values()] == NOTEBOOKS


@every_notebook
def test_it_opens_with_its_claim_and_the_table_of_in_out_time(label):
    kind, source, _ = notebook_cells(label)[0]
    assert kind == "markdown" and source.startswith("# ")
    heads = [[word.strip() for word in line.strip().strip("|").split("|")] for line in source.splitlines()]
    assert ["In", "Out", "Time"] in heads, "the first cell needs a table with the head | In | Out | Time |"
    claim = [line for line in source.splitlines()[1:] if line.strip()][0]
    assert not claim.startswith(("|", "#")), "one sentence comes between the title and the table"


@every_notebook
def test_its_parameters_cell_holds_plain_literals_with_a_comment_each(label):
    tagged = [source for source, cell in code(label) if is_parameters(cell)]
    assert len(tagged) == 1
    for param in read_parameters(ROOT / "notebooks" / f"{label}.ipynb"):
        assert param.comment, f"{label}: {param.name} has no comment"
    lines = [line for line in tagged[0].splitlines() if line.strip() and "import Literal" not in line]
    statements = ast.parse("\n".join(lines)).body
    assert len(lines) == len(statements), "one line a parameter, nothing else in the cell"


@every_notebook
def test_its_parameters_are_those_that_its_stage_needs(label):
    stage = label.partition("_")[2]
    names = {param.name for param in stage_parameters(stage)}
    assert set(STAGES[stage].manner) <= names


@every_notebook
def test_it_opens_its_run_right_after_the_parameters(label):
    cells = code(label)
    position = [is_parameters(cell) for _, cell in cells].index(True)
    assert position == 0, "the parameters cell is the first code cell"
    stage = label.partition("_")[2]
    assert re.search(rf"""\brun = open_run\(["']{stage}["'], globals\(\)\)""", cells[1][0])


@every_notebook
def test_it_is_short_and_defines_nothing(label):
    cells = code(label)
    assert len(cells) <= MOST_CODE_CELLS
    for source, cell in cells:
        longest = MOST_PARAMETERS if is_parameters(cell) else MOST_LINES
        assert len(source.splitlines()) <= longest, f"{label}: more than {longest} lines:\n{source}"
        plain = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith(("%", "!")))
        kinds = {type(node).__name__ for node in ast.walk(ast.parse(plain))}
        assert not kinds & {"FunctionDef", "AsyncFunctionDef", "ClassDef"}, source


@every_notebook
def test_it_ends_with_how_to_read_it_and_something_to_try(label):
    cells = notebook_cells(label)
    heads = [(source.splitlines() or [""])[0].lstrip("# ").strip().lower() for _, source, _ in cells]
    reading = heads.index("reading the result")
    assert cells[reading][0] == "markdown"
    assert "try it yourself" in heads[reading + 1 :]
    assert len(cells) - reading <= 3, "nothing but one thing to try comes after the reading"


@every_notebook
def test_it_is_committed_stripped_with_the_kernel_python3(label):
    metadata = json.loads((ROOT / "notebooks" / f"{label}.ipynb").read_text(encoding="utf-8"))["metadata"]
    assert metadata["kernelspec"]["name"] == "python3"
    for _, cell in code(label):
        assert cell["outputs"] == [] and cell["execution_count"] is None
        assert "injected-parameters" not in cell["metadata"].get("tags", [])


def test_nbstripout_as_the_hook_runs_it_would_change_nothing():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = {hook["id"]: hook for repo in config["repos"] for hook in repo["hooks"]}
    options = shlex.split(hooks["nbstripout"]["entry"])[1:]
    assert PRESENT, "no notebook to look at"
    files = [f"notebooks/{label}.ipynb" for label in PRESENT]
    command = [sys.executable, "-m", "nbstripout", "--verify", *options, *files]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
