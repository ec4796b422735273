"""Names of the data room that parameters hold, so that a wrong one is refused before a kernel starts.

The workbench imports no other room; tests/house keeps these names equal to those of eagle3lab/data.
"""

from __future__ import annotations

KNOWN_SETS = (
    "deepswe_kimi", "kimi_2000x", "glaive", "opencode", "evol_instruct", "mixture_of_thoughts", "openthoughts",
    "ultrachat", "sharegpt", "swe_agent", "alpaca", "glaive_demo", "tool_reasoning",
)  # fmt: skip
NO_ADDRESS = ("kimi_2000x",)  # sets that are known, and whose rows are published nowhere
HUB = "hub:"  # begins the place of a set that is on the hub
ADAPTERS = (
    "bfcl", "conversations", "glaive", "instruction", "messages", "opencode", "prompts", "sharegpt", "tolerant",
    "trajectory",
)  # fmt: skip
SET_OPTIONS = (
    "limit_train", "limit_heldout", "min_chars", "max_chars", "max_prompt_tokens", "max_reference_tokens",
    "heldout_share", "seed", "max_sample_tokens", "max_samples",
    "kind", "partition", "config", "split", "files", "revision", "columns", "where", "max_rows", "turn", "system",
    "tools", "thinking",
)  # fmt: skip


def set_name(text: str) -> str:
    """The name of an item of `sets`: `NAME`, `NAME:ADAPTER:PATH` or `NAME:ADAPTER:hub:OWNER/NAME`."""
    return text.split(":", 1)[0]


def names_a_set(text: str) -> bool:
    """Is this a known set with an address, or a name with an adapter and a place of its own."""
    parts = text.split(":", 2)
    return len(parts) == 3 and all(parts) or (text in KNOWN_SETS and text not in NO_ADDRESS)


def split_option(text: str) -> tuple[str, str, str] | None:
    """`SET.NAME=VALUE` in its three parts; None when it is not of that form."""
    key, equals, value = text.partition("=")
    owner, dot, name = key.strip().rpartition(".")
    return (owner, name, value.strip()) if equals and dot else None


def options_fit(options: list[str], sets: list[str]) -> bool:
    """Does every option have the form SET.NAME=VALUE, a set that is named, and the name of an option."""
    names = {set_name(text) for text in sets}
    parts = [split_option(text) for text in options]
    return all(part is not None and part[0] in names and part[1] in SET_OPTIONS for part in parts)
