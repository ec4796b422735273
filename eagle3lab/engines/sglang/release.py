"""The SGLang release in the server's own environment: its version, and what its own parser says to a command line.

Importing SGLang takes seconds, so its parser is asked once for a description of every flag, which is kept in the user's
cache; command lines are then read by a parser built from that description.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from eagle3lab.data.packages import cache_root
from eagle3lab.engines.servers.python import LIMIT_S, ServerPythonError, ask_python, last_line
from eagle3lab.workbench.files import read_json, write_json_atomic

_IDENTIFY = """
import importlib.metadata, importlib.util, json, os
folder = importlib.util.find_spec("sglang").submodule_search_locations[0]
written = os.stat(os.path.join(folder, "srt", "server_args.py")).st_mtime_ns
print(json.dumps([importlib.metadata.version("sglang"), folder, written]))
"""
# type: only int and float are kept, of which a wrong value is certain; choices only where the value is not converted
_DESCRIBE = """
import argparse, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(add_help=False)
ServerArgs.add_cli_args(parser)
print("flags:" + json.dumps([
    {
        "flags": action.option_strings, "nargs": action.nargs, "required": action.required,
        "type": action.type.__name__ if action.type in (int, float) else None,
        "choices": sorted(map(str, action.choices)) if action.choices and action.type in (None, str) else None,
    }
    for action in parser._actions
]))
"""


class ArgumentsRefused(ValueError):
    """The installed release does not take these arguments."""


@dataclass(frozen=True)
class Release:
    """SGLang as installed: version, package folder, and when its server_args.py was written (ns)."""

    version: str
    folder: str
    written: int


@lru_cache(maxsize=8)
def installed_release(python: str) -> Release:
    """The release in that Python's environment. Raises ServerPythonError."""
    return Release(*json.loads(ask_python(python, _IDENTIFY, "SGLang")))


def check_arguments(python: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raises ArgumentsRefused with the parser's words for a command line that this Python's SGLang would not read.

    `environment` is the server's; it is needed once, to import SGLang.
    """
    release = installed_release(python)
    parser = _parser(release, _described(python, release, environment))
    parser.parse_args(list(arguments))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ArgumentsRefused(f"SGLang {self.prog} refuses its arguments: {message}")


def _parser(release: Release, flags: list[dict[str, Any]]) -> argparse.ArgumentParser:
    parser = _Parser(prog=release.version, add_help=False)
    for flag in flags:
        if flag["nargs"] == 0:
            parser.add_argument(*flag["flags"], action="store_true")
        else:
            kind = {"int": int, "float": float, None: str}[flag["type"]]
            options = {name: flag[name] for name in ("nargs", "choices", "required") if flag[name]}
            parser.add_argument(*flag["flags"], type=kind, **options)
    return parser


def _described(python: str, release: Release, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    key = hashlib.sha256(f"{python} {release} {_DESCRIBE}".encode()).hexdigest()[:16]
    path = cache_root() / "sglang" / f"flags-{release.version}-{key}.json"
    if not path.is_file():
        run = subprocess.run(
            [python, "-c", _DESCRIBE], env={**os.environ, **environment},
            capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        found = [line for line in run.stdout.splitlines() if line.startswith("flags:")]
        if run.returncode != 0 or not found:
            raise ServerPythonError(f"{python} cannot import SGLang's arguments: {last_line(run.stderr)}")
        write_json_atomic(path, json.loads(found[0].removeprefix("flags:")))
    return read_json(path)
