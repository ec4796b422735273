"""pyproject.toml, requirements.lock, environment.yml and what is installed must say the same."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from repository import PACKAGE, ROOT, imported, imports_of, modules

# what the lock is written for; other systems need the same packages but for a few of their own
LOCKED_FOR = {
    "python_version": "3.11", "python_full_version": "3.11.9", "implementation_name": "cpython",
    "platform_python_implementation": "CPython", "platform_machine": "x86_64",
    "platform_system": "Linux", "sys_platform": "linux", "os_name": "posix",
}  # fmt: skip
RANGES = {"torch"}  # the lock's version and the one that sglang demands
SERVER = {"sglang": "0.5.23"}  # in environment.yml alone, with the torch it demands:
SERVER_TORCH = "2.14.1"
# used by others, see pyproject.toml
NOT_IMPORTED = {"accelerate", "gguf", "ipykernel", "jupyterlab", "tokenizers"}
MISSION = set("jupyterlab papermill torch transformers sglang pandas matplotlib safetensors".split())


def name_of(requirement: Requirement) -> str:
    return canonicalize_name(requirement.name)


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIRECT = {name_of(r): r for r in map(Requirement, PROJECT["dependencies"])}
DEV = {name_of(r): r for r in map(Requirement, PROJECT["optional-dependencies"]["dev"])}
EXTRAS = {
    name: {name_of(r): r for r in map(Requirement, listed)}
    for name, listed in PROJECT["optional-dependencies"].items()
    if name != "dev"  # the environment of this repository has `dev`; the others are for who wants them
}
OPTIONAL = {name: r for extra in EXTRAS.values() for name, r in extra.items()}
LOCK_TEXT = (ROOT / "requirements.lock").read_text(encoding="utf-8")
LOCK_LINES = [line for line in LOCK_TEXT.splitlines() if not line.startswith("#")]
LOCK = {name_of(r): r for r in map(Requirement, LOCK_LINES)}
SGLANG_TEXT = (ROOT / "sglang_cpu" / "requirements.lock").read_text(encoding="utf-8")
SGLANG_LINES = [line for line in SGLANG_TEXT.splitlines() if not line.startswith("#")]
SGLANG_LOCK = {name_of(r): r for r in map(Requirement, SGLANG_LINES)}
VLLM_TEXT = (ROOT / "vllm_cpu" / "requirements.lock").read_text(encoding="utf-8")
VLLM_LINES = [line for line in VLLM_TEXT.splitlines() if not line.startswith("#")]
VLLM_LOCK = {name_of(r): r for r in map(Requirement, VLLM_LINES)}
VLLM_OWN = {"lark", "setuptools"}  # of which vLLM names one version
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
CONDA_PIP = next(entry["pip"] for entry in CONDA["dependencies"] if isinstance(entry, dict))
CONDA_PINS = {name_of(r): r for r in map(Requirement, [line for line in CONDA_PIP if line != "-e ."])}


def pinned(requirement: Requirement) -> str:
    """The version of an exact pin; AssertionError for anything else."""
    match = re.fullmatch(r"==([\w.]+)", str(requirement.specifier))
    assert match and not requirement.url and not requirement.marker, f"{requirement} is no exact pin"
    return match.group(1)


@pytest.mark.parametrize(
    ("lock", "lines"),
    [(LOCK, LOCK_LINES), (SGLANG_LOCK, SGLANG_LINES), (VLLM_LOCK, VLLM_LINES)],
    ids=["lab", "sglang", "vllm"],
)
def test_a_lock_is_a_sorted_list_of_exact_pins(lock, lines):
    for requirement in lock.values():
        pinned(requirement)
    assert len(lock) == len(lines)
    assert sorted(lines, key=str.lower) == lines


def test_both_locks_have_the_same_versions_of_what_they_share_but_torch():
    shared = (set(LOCK) & set(SGLANG_LOCK)) - RANGES
    assert {"transformers", "tokenizers", "safetensors", "numpy"} <= shared  # so that hidden states can be compared
    assert {n: pinned(LOCK[n]) for n in shared} == {n: pinned(SGLANG_LOCK[n]) for n in shared}
    assert pinned(SGLANG_LOCK["torch"]) == SERVER_TORCH
    assert {n: pinned(SGLANG_LOCK[n]) for n in SERVER} == SERVER


def test_the_vllm_lock_has_the_labs_versions_of_what_they_share():
    shared = (set(LOCK) & set(VLLM_LOCK)) - VLLM_OWN
    assert {"torch", "transformers", "tokenizers", "safetensors", "numpy"} <= shared
    assert {n: pinned(LOCK[n]) for n in shared} == {n: pinned(VLLM_LOCK[n]) for n in shared}
    assert pinned(VLLM_LOCK["vllm-cpu"]) == "0.32.0"
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(VLLM_LOCK)  # none fits a torch of a plain index


@pytest.mark.parametrize("name", sorted(DIRECT | DEV))
def test_a_direct_dependency_has_the_same_version_in_the_lock(name):
    declared = (DIRECT | DEV)[name]
    if name in RANGES:
        assert declared.specifier.contains(pinned(LOCK[name]))
    else:
        assert pinned(declared) == pinned(LOCK[name])


def test_an_extra_is_pinned_exactly_and_apart_from_what_everyone_needs():
    assert set(EXTRAS) == {"hub"}
    for name, requirement in OPTIONAL.items():
        pinned(requirement)
        assert name not in DIRECT | DEV
        for lock in (LOCK, SGLANG_LOCK):  # where something else needs it in turn, it is the same version
            assert name not in lock or pinned(lock[name]) == pinned(requirement)


def needed_packages() -> set[str]:
    """Names of the direct dependencies and of all that they need in turn on the system the lock is for.

    What torch needs of CUDA is left out: its CPU and CUDA builds differ there, and it pins those itself.
    """
    needed: set[str] = set()
    waiting = [(name, frozenset(r.extras)) for name, r in (DIRECT | DEV).items()]
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        needed.add(name)
        for requirement in map(Requirement, metadata.requires(name) or []):
            below = name_of(requirement)
            if name == "torch" and re.match("nvidia-|cuda-|triton", below):
                continue
            wanted = any(
                requirement.marker is None or requirement.marker.evaluate(LOCKED_FOR | {"extra": extra})
                for extra in extras or {""}
            )
            item = (below, frozenset(requirement.extras))
            if wanted and item not in seen:
                seen.add(item)
                waiting.append(item)
    return needed


def test_the_lock_holds_everything_needed_and_nothing_else():
    needed = needed_packages()
    assert needed - set(LOCK) == set(), "needed, but not locked"
    assert set(LOCK) - needed == set(), "locked, but needed by nothing"


def test_what_is_installed_is_what_is_locked():
    for name, requirement in LOCK.items():
        # a CPU build of torch differs by its local part only: 2.13.0+cpu
        assert Version(metadata.version(name)).public == pinned(requirement), f"{name}: run `make env`"


def test_the_conda_environment_has_the_direct_dependencies_and_the_server():
    assert "-e ." in CONDA_PIP
    assert MISSION <= set(CONDA_PINS)
    assert set(CONDA_PINS) == set(DIRECT) | set(SERVER)
    for name, requirement in CONDA_PINS.items():
        if name in SERVER:
            assert pinned(requirement) == SERVER[name]
        elif name in RANGES:
            assert DIRECT[name].specifier.contains(pinned(requirement))
        else:
            assert pinned(requirement) == pinned(DIRECT[name])
    assert pinned(CONDA_PINS["torch"]) == SERVER_TORCH


def test_both_environments_have_a_python_the_project_allows():
    python = next(entry for entry in CONDA["dependencies"] if str(entry).startswith("python="))
    allowed = Requirement(f"{PACKAGE}{PROJECT['requires-python']}").specifier
    assert allowed.contains(python.removeprefix("python="))
    assert allowed.contains(".".join(map(str, sys.version_info[:3])))


def packages_behind(targets: Iterable[str]) -> set[str]:
    """The distributions that hold the imported names, without the standard library and this project."""
    installed = metadata.packages_distributions()
    top = {target.split(".")[0] for target in targets} - {PACKAGE} - sys.stdlib_module_names
    return {canonicalize_name(installed[name][0]) for name in top if name in installed}


def test_every_import_of_the_package_is_a_direct_dependency():
    targets = {target for name in modules() for target in imports_of(name)}
    used = packages_behind(targets)
    assert used - set(DIRECT) - set(OPTIONAL) == set(), "imported, but not declared"
    assert set(DIRECT) - used - NOT_IMPORTED == set(), "declared, but not imported"


def test_what_an_extra_brings_is_imported_where_it_is_used_not_with_its_module():
    at_once = set()
    for path in modules().values():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        at_once |= {canonicalize_name(target.split(".")[0]) for target in imported("", tree, is_package=True)}
    assert "numpy" in at_once and not at_once & set(OPTIONAL)
    assert {canonicalize_name(t.split(".")[0]) for name in modules() for t in imports_of(name)} >= set(OPTIONAL)


def test_every_import_of_the_tests_is_declared():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("*.py")]
    used = packages_behind(target for tree in trees for target in imported("tests", tree, is_package=True))
    assert used - set(DIRECT) - set(DEV) - set(OPTIONAL) == set()
