"""Checks of the machine: versions, cores, disk, time, the notebook kernel, processes left behind."""

import os
import platform
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path

import psutil
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from eagle3lab.analysis.doctor.commands import AGAIN, MACHINE
from eagle3lab.analysis.doctor.report import Check, judged
from eagle3lab.analysis.tables import human_bytes, human_hours
from eagle3lab.engines.servers.process import leftover_servers

KEY_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "papermill")
TIGHT = 0.8  # share of a resource above which its use is called tight


# ---- versions ----------------------------------------------------------------------------------------------


def check_python(pyproject: Path, version: str | None = None) -> Check:
    """The running Python against `requires-python` of pyproject.toml."""
    version = version or platform.python_version()
    try:
        requires = tomllib.loads(Path(pyproject).read_text(encoding="utf-8"))["project"]["requires-python"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        remedy, command = f"unreadable: {error!r}", f"git checkout -- {Path(pyproject).name}"
        return Check("python", version, f"requires-python of {pyproject}", "not checked", remedy, command)
    verdict = "ok" if SpecifierSet(requires).contains(version, prereleases=True) else "fault"
    remedy = "make an environment with a Python in this range, and start with its interpreter"
    return judged("python", version, requires, verdict, remedy, "make env")


def check_versions(
    lock: Path,
    packages: Sequence[str] = KEY_PACKAGES,
    installed: Callable[[str], str] = metadata.version,
) -> list[Check]:
    """Installed versions against the lock file (pip freeze style), one row a package.

    Local build tags (2.13.0+cpu) are not compared: the same release differs by them from machine to machine.
    """
    lock = Path(lock)
    if not lock.is_file():
        remedy = "run from a full checkout of the repository"
        return [Check("versions", "no lock file", lock.name, "not checked", remedy, f"git checkout -- {lock.name}")]
    pins = read_pins(lock.read_text(encoding="utf-8"))
    return [_version_row(package, pins.get(canonicalize_name(package)), installed, lock.name) for package in packages]


def read_pins(text: str) -> dict[str, str]:
    """`name==version` lines of a lock file as {canonical name: version}; other lines are passed over."""
    lines = re.findall(r"^([A-Za-z0-9][\w.\-]*)(?:\[[^\]]*\])?\s*==\s*([^\s;#\\]+)", text, flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in lines}


def _version_row(package, pinned, installed, lock_name) -> Check:
    name = f"version of {package}"
    if pinned is None:
        command = f"python -m pip freeze | grep -i {package}=="
        return Check(name, "not pinned", lock_name, "not checked", f"pin {package} in {lock_name}", command)
    remedy, command = f"install what {lock_name} names", f"{sys.executable} -m pip install -r {lock_name}"
    try:
        found = installed(package)
    except metadata.PackageNotFoundError:
        return Check(name, "not installed", pinned, "fault", remedy, command)
    same = Version(found).public == Version(pinned).public
    return judged(name, found, pinned, "ok" if same else "warning", remedy, command)


# ---- cores, disk, time -----------------------------------------------------------------------------


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_disk(folder: Path) -> int:
    """Free bytes of the file system that holds `folder` (or its nearest existing parent)."""
    folder = Path(folder).absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def check_cores(found: int, wanted: int) -> Check:
    """Usable cores against the number of threads the profile is meant for."""
    verdict = "ok" if found >= wanted else "warning"
    remedy = "expect longer times than stated, or state a slower machine in doctor.yaml of the profile"
    command = "python -m eagle3lab params doctor --profile PROFILE"
    return judged("cores", str(found), f"at least {wanted}", verdict, remedy, command)


def check_disk(free: int, needed: int) -> Check:
    """Free disk (bytes) against the size of everything the run will write."""
    verdict = "ok" if needed <= TIGHT * free else "warning" if needed <= free else "fault"
    remedy = "free some space (the command says what takes it), lower the number of samples, or set runs_dir elsewhere"
    found, expected = f"{human_bytes(free)} free", f"{human_bytes(needed)} needed"
    return judged("disk", found, expected, verdict, remedy, "du -sh runs/* | sort -h")


def check_hours(estimated: float, limit: float) -> Check:
    """Estimated hours of all stages against the time the user allows."""
    verdict = "ok" if estimated <= TIGHT * limit else "warning" if estimated <= limit else "fault"
    remedy = "lower the number of samples or passes, or raise the limit"
    found, expected = f"{human_hours(estimated)} estimated", f"at most {human_hours(limit)}"
    return judged("time", found, expected, verdict, remedy, f"{MACHINE} -p limit_train NUMBER")


# ---- kernel and processes ----------------------------------------------------------------------------------


def check_kernelspec(argv: Sequence[str], executable: str = sys.executable) -> Check:
    """The kernel's command line must start this very Python, or notebooks run with other packages.

    A bare `python` or `python3` is replaced by the running interpreter by jupyter_client, so it is right too.
    """
    found = argv[0] if argv else "empty argv"
    bare = re.fullmatch(r"python(3(\.\d+)?)?", found) is not None
    same = bare or os.path.abspath(found) == os.path.abspath(executable)
    remedy, command = "install this kernel", f"{executable} -m ipykernel install --sys-prefix --name python3"
    return judged("kernelspec python3", found, executable, "ok" if same else "fault", remedy, command)


@dataclass(frozen=True)
class Process:
    """A living process: id, process group, start time in seconds since the epoch, command."""

    pid: int
    group: int
    started: float
    command: str


def processes() -> list[Process]:
    """All living processes whose group can be read (zombies left out)."""
    found = []
    for process in psutil.process_iter(["pid", "create_time", "status", "name"]):
        info = process.info
        try:
            group = os.getpgid(info["pid"])
        except OSError:  # it ended meanwhile
            continue
        if info["status"] != psutil.STATUS_ZOMBIE:
            found.append(Process(info["pid"], group, info["create_time"], info["name"] or "?"))
    return found


def check_leftovers(records: Iterable[dict], alive: Sequence[Process]) -> list[Check]:
    """Process groups that ended runs left behind, and runs that say `running` though their process is gone.

    records: run.json contents (run_id, state, pid, process_groups, ended). A group whose members all started
    after the
    run ended is another program that got the same number.
    """
    rows, pids = [], {process.pid for process in alive}
    for record in records:
        if record["state"] == "running":
            if record["pid"] in pids:
                continue
            rows.append(
                Check(
                    f"run {record['run_id']}",
                    "state running, process gone",
                    "a living process",
                    "warning",
                    "run the stage again: it continues where it stopped",
                    f"{AGAIN.replace('PROFILE', record['profile'])} --only {record['stage']}",
                )
            )
        ended = datetime.fromisoformat(record["ended"]).timestamp() if record.get("ended") else float("inf")
        for group in record.get("process_groups") or ():
            members = [p for p in alive if p.group == group and p.started <= ended]
            if members:
                names = ", ".join(f"{p.command} ({p.pid})" for p in members)
                rows.append(
                    Check(
                        f"run {record['run_id']}",
                        f"still running: {names}",
                        "nothing left behind",
                        "warning",
                        "look at them, then end them",
                        f"kill -- -{group}",
                    )
                )
    return rows or [Check("leftover processes", "none", "none", "ok")]


def check_leftover_servers() -> list[Check]:
    """SGLang servers that a lab process started and could not end, because it was killed itself."""
    rows = []
    for process in leftover_servers():
        command = " ".join(process.cmdline()[:6])
        rows.append(
            Check(
                f"server {process.pid}",
                f"still running: {command}",
                "ended with whoever started it",
                "warning",
                "look at it, then end it",
                f"kill -- -{process.pid}",
            )
        )
    return rows or [Check("leftover servers", "none", "none", "ok")]
