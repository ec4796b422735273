"""GSM-symbolic questions: school arithmetic written by the seeded generators of a pinned package.

The package holds no file of questions but one function for each template; they need nothing but its number formats,
so they are run from the package's own source, without its other modules and their dependencies.
"""

from __future__ import annotations

from random import Random
from typing import Any

from eagle3lab.data.packages import PackageError, fetch_package, member_bytes

PACKAGE = "reasoning-gym"
_FOLDER = "reasoning_gym/arithmetic/gsm_symbolic"
_SOURCES = ("reasoning_gym/utils.py", f"{_FOLDER}/generators_00_49.py", f"{_FOLDER}/generators_50_99.py")
_UTILS_IMPORT = "from reasoning_gym.utils import format_number, is_integer\n"
# marked by the package itself as not yet right
_BROKEN = (32, 35, 37, 61, 63, 65, 74, 76, 77, 79, 86, 87, 90, 97, 98)
TEMPLATES = tuple(number for number in range(100) if number not in _BROKEN)
_ASKS_FOR = " Give the result as your final answer. Do not include units."  # as the package asks


def gsm_symbolic_questions(per_template: int = 2, seed: int = 0) -> dict[str, str]:
    """Key (template-number) -> question, `per_template` of each of the 85 templates, all templates once before any
    comes twice. The same for the same seed. PackageError when the package holds something else than it is pinned for.
    """
    names: dict[str, Any] = {"__name__": _FOLDER.replace("/", ".")}
    package = fetch_package(PACKAGE)
    for member in _SOURCES:
        source = member_bytes(package, member).decode("utf-8").replace(_UTILS_IMPORT, "")
        exec(compile(source, f"{package.name}/{member}", "exec"), names)  # hash-checked code of the pinned package
    found = {}
    for number in range(per_template):
        for template in TEMPLATES:
            if (generate := names.get(f"generate_{template}")) is None:
                raise PackageError(f"{package.name} has no GSM-symbolic template {template}")
            made = generate(Random(f"{seed}-{template}-{number}"), 1.0)
            found[f"{template}-{number}"] = made["question"] + _ASKS_FOR
    return found
