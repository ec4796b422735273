"""Opening a run from a notebook: values checked, upstream found, identity computed, folder made."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, MutableMapping
from typing import Any

from .code_hash import code_digest, stage_code
from .kernel_record import KernelRecord
from .layers import common_names
from .lineage import Identity, UpstreamRun, choose_upstream, identify, upstream_runs
from .notebooks import assigned_names
from .params import (
    CELL_DEFAULT,
    Param,
    ParameterError,
    fit_parameter,
    refuse_impossible,
    run_parameter,
    stage_parameters,
)
from .processes import driven_run_id
from .records import begin_record
from .replaced import settle
from .root import from_root
from .runs import Run
from .stages import Stage, get_stage
from .types import nearest


class RunMismatch(RuntimeError):
    """The notebook's run is not the one its runner planned."""


def open_run(stage: str, namespace: MutableMapping[str, Any]) -> Run:
    """Open the run of this notebook: `run = open_run("training", globals())`, right after the parameters
    cell.

    Takes the NAMES of the parameters from the stage's notebook file and their VALUES from `namespace`, so
    that Jupyter, papermill and the runner give the same run. Values are fitted to their declared types and
    put back into the namespace; `<upstream>_run = "latest"` becomes the id that was found (the rule stands
    at `lineage.choose_upstream`). Raises ParameterError (unknown name in papermill's injected cell, wrong
    type, impossible combination), UpstreamError (a needed run is missing, or the runs do not belong
    together), RunBusy (another process writes this run).
    """
    # Libraries' own progress bars are off; their advice to install widgets for them is noise in the record.
    warnings.filterwarnings("ignore", message="IProgress not found")
    spec = get_stage(stage)
    params = stage_parameters(stage)
    injected = _injected_names(namespace)
    values = _values(spec, params, namespace)
    _refuse_unknown(spec, params, injected, values["profile"])
    refuse_impossible(stage, values)
    runs_dir = from_root(values["runs_dir"])
    if driven_run_id() is None:  # a runner did it before
        settle(runs_dir)
    asked = dict(values)
    sources = choose_upstream(spec, values, values["profile"], runs_dir)
    upstream = upstream_runs(spec, sources, runs_dir)
    values |= {run_parameter(needed): run.id for needed, run in upstream.items()}
    namespace.update(values)
    code = stage_code(stage)
    identity = identify(stage, values["profile"], values, upstream, code_digest(code))
    folder = runs_dir / identity.run_id
    kernel_record = None
    driven = driven_run_id()
    if driven is None:
        folder.mkdir(parents=True, exist_ok=True)
        origins = {param.name: _origin(param, asked[param.name], injected) for param in params}
        record = new_record(spec, identity, values, origins, upstream, code, "kernel")
        kernel_record = KernelRecord(folder, record)
    elif driven != identity.run_id:
        raise RunMismatch(
            f"the runner planned {driven}, this notebook makes {identity.run_id}: parameters were "
            "changed between the parameters cell and open_run, or code was edited; start it again"
        )
    return Run(identity.run_id, stage, folder, values, upstream, kernel_record)


def new_record(
    spec: Stage,
    identity: Identity,
    values: Mapping[str, Any],
    origins: Mapping[str, str],
    upstream: Mapping[str, UpstreamRun],
    code: Mapping[str, str],
    driver: str,
) -> dict[str, Any]:
    """The first record of a run, from what decides it."""
    return begin_record(
        run_id=identity.run_id,
        stage=spec.name,
        profile=values["profile"],
        fingerprint=identity.fingerprint,
        parameters={name: {"value": value, "origin": origins[name]} for name, value in values.items()},
        upstream={name: {"run_id": run.id, "manifest_sha256": run.digest} for name, run in upstream.items()},
        code=code,
        driver=driver,
    )


def _injected_names(namespace: Mapping[str, Any]) -> list[str]:
    """Names assigned by the cell that papermill injected, found in IPython's input history."""
    for cell in reversed(namespace.get("In") or []):
        if cell.startswith("# Parameters\n"):
            return assigned_names(cell)
    return []


def _refuse_unknown(spec: Stage, params: list[Param], injected: list[str], profile: str) -> None:
    """papermill only warns of unknown parameters; a name may be foreign only if common.yaml shares it."""
    known = {param.name for param in params}
    shared = common_names(profile)
    for name in injected:
        if name not in known and name not in shared:
            raise ParameterError(f"{spec.notebook} has no parameter {name!r}{nearest(name, known)}")


def _values(spec: Stage, params: list[Param], namespace: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for param in params:
        if param.name not in namespace:
            raise ParameterError(f"{param.name} is not set: run the parameters cell of {spec.notebook} first")
        values[param.name] = fit_parameter(param, namespace[param.name], spec.notebook)
    if not re.fullmatch(r"\w+", values["profile"]):
        raise ParameterError(f"profile = {values['profile']!r}: letters, digits and _ only (it names run folders)")
    return values


def _origin(param: Param, value: Any, injected: list[str]) -> str:
    if param.name in injected:
        return "papermill"
    return CELL_DEFAULT if value == param.default else "notebook"
