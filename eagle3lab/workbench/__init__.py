"""Workbench: parameters, run folders, runner, plans and status. Imports neither torch nor transformers."""

from .files import append_jsonl, atomic_path, read_jsonl, write_json_atomic, write_text_atomic
from .opening import open_run
from .root import from_root, repository_root
from .runs import Run
from .stages import STAGES

__all__ = [
    "STAGES",
    "Run",
    "append_jsonl",
    "atomic_path",
    "from_root",
    "open_run",
    "read_jsonl",
    "repository_root",
    "write_json_atomic",
    "write_text_atomic",
]
