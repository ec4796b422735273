"""The README speaks of things that exist."""

import re

from repository import NOTEBOOKS, ROOT, repository_files

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_no_number_is_left_to_be_filled_in():
    assert re.findall(r"<<.*?>>", README) == []


def test_every_make_target_it_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][a-z-]+)(?=[\s`.,;:)]|$)", "\n".join(code_spans())))
    assert named and named <= targets


def test_every_file_it_links_or_shows_exists():
    linked = re.findall(r"\]\(([^)#:]+?)\)", README)
    written = re.findall(r"(?<![\w/])(?:params|notebooks|tests|dev|docs)/[\w./-]*\w", "\n".join(code_spans()))
    new = {"params/mine"}  # what the reader makes
    assert [name for name in linked + written if name not in new and not (ROOT / name).exists()] == []


def test_the_notebook_table_has_every_notebook_and_its_link():
    for label in NOTEBOOKS:
        assert f"](notebooks/{label}.ipynb)" in README, label


def test_the_file_tree_shows_what_is_there():
    tree = re.search(r"```text\n(eagle3lab/.*?)```", README, re.DOTALL)
    assert tree
    lines = [line for line in tree.group(1).splitlines() if line]
    shown = {line.split()[0] for line in lines if line[0] != " "}
    shown |= {"eagle3lab/" + line.split()[0] for line in lines if line[0] == " "}
    missing = {name for name in shown if not (ROOT / name).exists()}
    assert not missing
    top = {name.split("/")[0] + ("/" if "/" in name else "") for name in repository_files()}
    assert {name for name in top if not name.startswith(".")} <= shown, "not in the file tree"


def code_spans() -> list[str]:
    """What stands in code spans and code blocks."""
    return re.findall(r"```.*?```|`[^`\n]+`", README, re.DOTALL)
