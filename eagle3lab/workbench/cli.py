"""The command `python -m eagle3lab`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from .assumptions import read_assumptions
from .card import Given, card, training_run, write_hub_folder
from .closing import closing_text
from .execution import Limits
from .files import write_text_atomic
from .outlook import reckon
from .params import CommandLineText, ParameterError, resolve_parameters, stage_parameters
from .plan import not_there, plan
from .plan_text import commands_text, not_there_text, outlook_text, stages_text
from .records import FAILED, INTERRUPTED, KERNEL_DIED, OK, REPORT, STOPPED_EARLY, TIMEOUT
from .runner import StageResult, run_chain
from .stages import STAGES, get_stage, select_stages
from .status import status

EXIT_CODES = {OK: 0, FAILED: 1, STOPPED_EARLY: 3, TIMEOUT: 124, INTERRUPTED: 130, KERNEL_DIED: 137}
_REFUSED = 2
_NOBODY_READS = 141  # as a shell tells SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (0 ok, 2 refused before a kernel started, others per state)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments[:1] == ["doctor"] and (arguments[1:2] == [] or arguments[1].startswith("-")):
            return _above("command").main(arguments[1:])  # artefacts and servers instead of a profile
        options = _parser().parse_args(arguments)
        code = options.action(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read the output has seen enough (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NOBODY_READS
    except (ValueError, RuntimeError, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return _REFUSED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_CODES[INTERRUPTED]


def _above(name: str) -> ModuleType:
    """A module of the doctor: by name, because it loads torch and lies on a floor above."""
    return import_module(f"eagle3lab.analysis.doctor.{name}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m eagle3lab", description=__doc__)
    commands = parser.add_subparsers(required=True)

    run = commands.add_parser("run", help="run the stages of a profile, skipping unchanged ones")
    _add_selection(run)
    run.add_argument("--timeout-minutes", type=float, help="wall-clock limit for each stage")
    run.add_argument("--cell-timeout-minutes", type=float, help="limit for each cell")
    run.set_defaults(action=_run)

    show = commands.add_parser("plan", help="what would run, with which values and why, and what it takes")
    _add_selection(show)
    show.add_argument("--values", action="store_true", help="show every value with its origin, defaults too")
    show.set_defaults(action=_plan)

    params = commands.add_parser("params", help="list a stage's parameters: type, value, meaning")
    params.add_argument("stage")
    params.add_argument("--profile", help="show the values of this profile instead of the defaults")
    params.set_defaults(action=_params)

    report = commands.add_parser("status", help="what is done, running and next")
    report.add_argument("profile", nargs="?")
    report.add_argument("--runs-dir", default="runs")
    report.add_argument("--html", metavar="FILE", help="also write it as a web page")
    report.set_defaults(action=_status)

    model_card = commands.add_parser("card", help="a drafter's model card from the run records, or a folder for a hub")
    model_card.add_argument("run", help="a finished training run's id, or a profile: its newest one")
    model_card.add_argument("--folder", help="write the drafter's files and the card into this new folder")
    model_card.add_argument("--license", metavar="ID", help="the drafter's license, as hubs list it (apache-2.0 ...)")
    model_card.add_argument("--license-name", metavar="NAME", help="its name, with --license other")
    model_card.add_argument("--base-model", metavar="OWNER/NAME", help="the hub's name of a target from a local folder")
    model_card.add_argument("--runs-dir", default="runs")
    model_card.set_defaults(action=_card)

    doctor = commands.add_parser("doctor", help="check this machine and a profile, or any artefact (doctor --help)")
    doctor.add_argument("profile")
    doctor.set_defaults(action=_doctor)
    return parser


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", help="a folder under params/")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="these stages")
    parser.add_argument("--from", dest="first", metavar="STAGE", help="from this stage on")
    parser.add_argument("--to", dest="last", metavar="STAGE", help="up to this stage")
    parser.add_argument(
        "-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="set a parameter in every selected stage that has it",
    )  # fmt: skip
    parser.add_argument(
        "--force", action="store_true",
        help="run also what is unchanged, from nothing; a good run is kept until the new one ended ok",
    )  # fmt: skip


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    names = [name for name, _ in options.parameters]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ParameterError(f"-p sets {', '.join(sorted(twice))} twice")
    return {name: CommandLineText(value) for name, value in options.parameters}


def _run(options: argparse.Namespace) -> int:
    stages = select_stages(options.only, options.first, options.last)
    limits = Limits(_seconds(options.timeout_minutes), _seconds(options.cell_timeout_minutes))
    results = run_chain(options.profile, stages, _overrides(options), force=options.force, limits=limits)
    last: StageResult = results[-1]
    if last.state != OK:
        given = [word for name, value in options.parameters for word in ("-p", name, value)]
        left = stages[stages.index(last.stage) :]
        selected = ["--only", *left] if options.only or options.last else ["--from", last.stage]
        words = ["run", options.profile, *selected, *["--force"] * last.came_back, *given]
        print(f"stopped at {last.stage}; continue with: python -m eagle3lab {shlex.join(words)}")
    else:
        print(closing_text((result.stage, result.folder) for result in results))
    return EXIT_CODES[last.state]


def _doctor(options: argparse.Namespace) -> int:
    """Run notebook 00 and say what it found; 1 when there is a fault."""
    (result,) = run_chain(options.profile, ["doctor"], warn=False)  # the report below says it, with the way out
    if result.state != OK:
        return EXIT_CODES[result.state]
    report = _above("report")
    rows = report.read_report(result.folder / REPORT)
    print(report.as_text(rows).replace(" PROFILE", f" {options.profile}"))
    return report.exit_code(rows)


def _seconds(minutes: float | None) -> float | None:
    if minutes is not None and minutes <= 0:
        raise ValueError("a limit must be greater than 0 minutes")
    return None if minutes is None else 60 * minutes


def _plan(options: argparse.Namespace) -> int:
    stages = select_stages(options.only, options.first, options.last)
    rows = plan(options.profile, _overrides(options), stages, options.force)
    assumed = read_assumptions(options.profile)
    whole = assumed and len(rows) == len(STAGES)
    outlook = reckon({row.stage.name: row.resolved.values for row in rows}, assumed) if whole else None
    print(stages_text(rows, options.values))
    if outlook:
        print(outlook_text(outlook, rows))
    elif not assumed:
        print(f"\nNo counts, bytes and hours: params/{options.profile}/plan.yaml would state what to reckon from.")
    if missing := not_there(rows):
        print(not_there_text(missing))
    print(commands_text(rows, options.parameters))
    return 0


def _params(options: argparse.Namespace) -> int:
    stage = get_stage(options.stage)
    params = stage_parameters(stage.name)
    resolved = resolve_parameters(stage.name, options.profile) if options.profile else None
    for param in params:
        value = resolved.values[param.name] if resolved else param.default
        origin = f"  [{resolved.origins[param.name]}]" if resolved else ""
        print(f"{param.name}: {param.declared} = {value!r}  # {param.comment}{origin}")
    return 0


def _status(options: argparse.Namespace) -> int:
    report = status(options.runs_dir, options.profile)
    if options.html:
        write_text_atomic(options.html, report.to_html())
    print(report.to_markdown())
    return 0


def _card(options: argparse.Namespace) -> int:
    given = Given(options.license, options.base_model, options.license_name)
    run = training_run(options.run, options.runs_dir)
    if options.folder:
        print(f"{write_hub_folder(run, options.folder, given)}: the drafter of {run.id} and its card")
    else:
        print(card(run, given))
    return 0
