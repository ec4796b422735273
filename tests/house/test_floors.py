"""One room per stage, and imports only go down."""

import ast

import pytest
from repository import PACKAGE, imported, imports_of, inner_imports, modules, room

# what a module of each room may import besides its own room
BELOW = {
    "workbench": set(),
    "data": {"workbench"},
    "features": {"workbench"},
    "draft": {"workbench", "data", "features"},
    "engines": {"workbench", "data", "features", "draft"},
    "analysis": {"workbench", "data", "features", "draft", "engines"},
}
# of the workbench, the other rooms know how to write files and what a number may be, and nothing of runs
OPEN_TO_ALL = {f"{PACKAGE}.workbench.files", f"{PACKAGE}.workbench.ranges"}


def test_the_rooms_are_the_ones_of_the_plan():
    assert {room(name) for name in modules()} - {""} == set(BELOW)


@pytest.mark.parametrize("name", modules())
def test_a_module_imports_only_its_own_room_and_lower_floors(name):
    own = room(name)
    allowed = BELOW[own] | {own, ""} if own else {"workbench", ""}
    higher = {target for target in inner_imports(name) if room(target) not in allowed}
    assert not higher, f"{name} imports {sorted(higher)}"


@pytest.mark.parametrize("name", [name for name in modules() if room(name) not in ("workbench", "")])
def test_only_the_workbench_knows_of_runs(name):
    used = {target for target in inner_imports(name) if room(target) == "workbench"}
    assert used <= OPEN_TO_ALL, f"{name} imports {sorted(used - OPEN_TO_ALL)}"


@pytest.mark.parametrize("name", [name for name in modules() if room(name) == "workbench"])
def test_the_workbench_names_no_torch(name):
    heavy = {target for target in imports_of(name) if target.split(".")[0] in ("torch", "transformers")}
    assert not heavy, f"{name} imports {sorted(heavy)}"


def test_no_import_goes_in_a_circle():
    below: dict[str, set[str]] = {name: inner_imports(name) for name in modules()}
    while below:
        free = {name for name, targets in below.items() if not targets & set(below)}
        assert free, f"modules in a circle, or above one: {sorted(below)}"
        below = {name: targets for name, targets in below.items() if name not in free}


def test_relative_imports_are_resolved():
    tree = ast.parse("from . import a\nfrom .b import c\nfrom ..d import e\nimport f.g")
    assert set(imported("p.q.m", tree, is_package=False)) == {"p.q.a", "p.q.b.c", "p.d.e", "f.g"}
    assert set(imported("p.q", tree, is_package=True)) == {"p.q.a", "p.q.b.c", "p.d.e", "f.g"}
