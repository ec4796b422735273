"""Flags that a launch writes from a specification. Written once more among the further flags, the later one would win,
and the server would be another one than its record says: EAGLE instead of EAGLE3 is how the case lost its days.

The same lists as in eagle3lab/workbench/server_commands.py, which is on the floor below: tests/house keeps them equal.
"""

from __future__ import annotations

from collections.abc import Iterable

# A * stands for any ending. --config is a file of flags, in which all others could hide.
SGLANG = (
    "--speculative-*", "--model-path", "--host", "--port", "--dtype", "--device", "--config",
    "--return-aux-hidden-state-layer-ids", "--disable-cuda-graph", "--disable-decode-cuda-graph",
    "--disable-prefill-cuda-graph", "--cuda-graph-backend-*", "--cuda-graph-config",
)  # fmt: skip
VLLM = (
    "--speculative-*", "--spec-*", "-sc", "--model", "--served-model-name", "--host", "--port", "--dtype", "--config",
    "--generation-config", "--kv-transfer-config",
)  # fmt: skip


def own_flag(word: str, own: Iterable[str]) -> str | None:
    """The flag among `own` that a word of a command line writes; None when it writes none.

    Told from `--flag`, `--flag=value`, the parts of a JSON value (`--flag.part`), underscores for hyphens, and the
    beginning of a flag, which parsers complete.
    """
    name = word.partition("=")[0].partition(".")[0].replace("_", "-")
    for flag in own:
        begin = flag.removesuffix("*")
        if name == flag or (flag != begin and name.startswith(begin)):
            return flag
        if name.startswith("--") and len(name) > 2 and begin.startswith(name):
            return flag
    return None
