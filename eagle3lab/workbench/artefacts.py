"""Artefacts of a run: what is in its manifest, and the check that the files are still those.

manifest.json: key -> {path (relative to the run folder), kind, bytes, sha256[, files: {relative path:
{bytes, sha256}}]}. It holds no times, so that the same work gives the same manifest. A file is hashed once;
later openings compare size and modification time with `verified.json` and hash again only where those
differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import read_json, sha256_file, write_json_atomic
from .records import MANIFEST, RESULTS
from .types import nearest

VERIFIED = "verified.json"
# Kinds that show a run without being input to another: times in them may differ between two equal runs.
SHOWN_KINDS = ("figure", "log")


class ArtefactError(RuntimeError):
    """An artefact is missing, unknown or no longer what the manifest says; the text names the file."""


def describe(folder: Path, path: Path, kind: str) -> dict[str, Any]:
    """The manifest entry of a file or directory inside a run folder."""
    path = path.resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ArtefactError(f"{path} lies outside the run folder {folder.name}")
    if not path.exists():
        raise ArtefactError(f"{path} does not exist: write it before it is added")
    relative = path.relative_to(folder.resolve()).as_posix()
    if path.is_file():
        return {"path": relative, "kind": kind, "bytes": path.stat().st_size, "sha256": sha256_file(path)}
    files = {
        file.relative_to(path).as_posix(): {"bytes": file.stat().st_size, "sha256": sha256_file(file)}
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }
    listing = json.dumps({name: entry["sha256"] for name, entry in files.items()}, sort_keys=True)
    return {
        "path": relative,
        "kind": kind,
        "bytes": sum(entry["bytes"] for entry in files.values()),
        "sha256": hashlib.sha256(listing.encode()).hexdigest(),
        "files": files,
    }


def manifest_digest(manifest: Mapping[str, Mapping[str, Any]]) -> str:
    """sha256 over the keys and hashes of the artefacts that are input to later stages (no figures, no
    logs).
    """
    counted = {key: entry["sha256"] for key, entry in manifest.items() if entry["kind"] not in SHOWN_KINDS}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """The manifest of a finished run; ArtefactError when it has none."""
    path = folder / MANIFEST
    if not path.exists():
        raise ArtefactError(f"{folder.name} has no {MANIFEST}: the run never reached run.finish()")
    return read_json(path)


def missing_files(folder: Path, manifest: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Keys of the manifest whose file or directory is gone, or a file of the directory."""
    return [
        key
        for key, entry in manifest.items()
        if not all((folder / entry["path"] / name).exists() for name in ("", *entry.get("files", ())))
    ]


def gone_files(folder: Path) -> list[str]:
    """What a finished run lacks: its manifest, its results, or artefacts (by key)."""
    gone = [name for name in (MANIFEST, RESULTS) if not (folder / name).exists()]
    return gone or missing_files(folder, read_manifest(folder))


def checked_path(folder: Path, manifest: Mapping[str, Mapping[str, Any]], key: str) -> Path:
    """The path of an artefact after its bytes were checked; ArtefactError names the file that differs."""
    if key not in manifest:
        raise ArtefactError(
            f"{folder.name} has no artefact {key!r}{nearest(key, manifest)}; it has {', '.join(manifest) or 'none'}"
        )
    entry = manifest[key]
    path = folder / entry["path"]
    files = {path: entry} if "files" not in entry else {path / name: e for name, e in entry["files"].items()}
    stamps_file = folder / VERIFIED
    stamps = read_json(stamps_file) if stamps_file.exists() else {}
    changed = False
    for file, expected in files.items():
        if not file.exists():
            raise ArtefactError(f"{file} is gone; run the stage again: it belongs to {folder.name}")
        name = file.relative_to(folder).as_posix()
        stamp = _stamp(file, expected)
        if stamps.get(name) == stamp:
            continue
        if file.stat().st_size != expected["bytes"] or sha256_file(file) != expected["sha256"]:
            raise ArtefactError(
                f"{file} is not the file that {folder.name} wrote (size or sha256 differs): "
                "restore it, or remove it and run the stage again: it goes on from the rest (--force: from nothing)"
            )
        stamps[name], changed = stamp, True
    if changed:
        write_json_atomic(stamps_file, stamps)
    return path


def _stamp(file: Path, expected: Mapping[str, Any]) -> list[Any]:
    return [file.stat().st_size, file.stat().st_mtime_ns, expected["sha256"]]
