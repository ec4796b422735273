"""sglang_cpu/requirements.lock: exact, sorted, and one version with the lab where both have a package."""

import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def lines(path: str) -> list[str]:
    return [line for line in (ROOT / path).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def pins(path: str) -> dict[str, str]:
    """Version of each package; AssertionError for anything but an exact pin."""
    found = {}
    for line in lines(path):
        requirement = Requirement(line)
        exact = re.fullmatch(r"==([\w.]+)", str(requirement.specifier))
        assert exact and not requirement.marker, f"{line} is no exact pin"
        found[canonicalize_name(requirement.name)] = exact.group(1)
    return found


def test_the_server_lock_is_a_sorted_list_of_exact_pins():
    listed = lines("sglang_cpu/requirements.lock")
    assert len(pins("sglang_cpu/requirements.lock")) == len(listed)
    assert listed == sorted(listed, key=str.lower)


def test_server_and_lab_have_one_version_of_everything_but_torch():
    server, lab = pins("sglang_cpu/requirements.lock"), pins("requirements.lock")
    differing = {name for name in server.keys() & lab.keys() if server[name] != lab[name]}
    assert differing <= {"torch"}
    assert {"transformers", "tokenizers", "safetensors"} <= server.keys() & lab.keys()
    assert server["sglang"] == "0.5.23"
