"""The doctor of artefacts and servers: `python -m eagle3lab doctor --target FOLDER --draft FOLDER ...`.

`python -m eagle3lab doctor PROFILE` is another one (eagle3lab.workbench.cli); it is told of here for those who ask what
there is.

Exit code 0: nothing to mend. 1: a fault was found. 2: the command itself was refused.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from eagle3lab.analysis.doctor.examine import Subject, run_doctor
from eagle3lab.analysis.doctor.report import as_json, as_text, exit_code
from eagle3lab.data.targets import TargetError, resolve_target
from eagle3lab.draft.checkpoint import CheckpointError
from eagle3lab.draft.engine_support import SERVER
from eagle3lab.draft.foreign import find_draft
from eagle3lab.engines.sglang.spec import ServerSpec, SpecError


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(
        prog="python -m eagle3lab doctor",
        usage="%(prog)s PROFILE\n       %(prog)s [--target TARGET] [--draft DRAFT] [--launch] ...",
        description="Check what lies between you and speed: this machine with a profile, or artefacts and servers.",
        epilog="One check needs served answers, and is made by notebook 05_diagnostics: are simulated and served "
        "verifications the same (python -m eagle3lab run PROFILE --only diagnostics).",
    )
    made.add_argument(
        "profile", nargs="?", metavar="PROFILE",
        help="a folder under params/: check this machine, the profile's target and what its plan costs (runs notebook "
             "00); goes without options",
    )  # fmt: skip
    made.add_argument("--target", help="folder or hub name of the target")
    for name, words in (
        ("prepared", "prepared folder of 01_data_prep"),
        ("corpus", "corpus.parquet of 02_inference"),
        ("features", "feature store of 03_extraction"),
        ("vocab-map", "vocab_map.safetensors of 03_extraction"),
        ("benchmark", "benchmark.json of 06_serving"),
    ):
        made.add_argument(f"--{name}", type=Path, help=words)
    made.add_argument("--draft", help="folder or hub name of anybody's drafter")
    made.add_argument("--server", metavar="URL", help="a running SGLang server")
    made.add_argument("--aux-layers", type=int, nargs="+", help="hs indices that are meant")
    made.add_argument(
        "--launch", action="store_true", help="also check a server of this target and draft before it starts"
    )
    made.add_argument("--num-steps", type=int, default=3)
    made.add_argument("--topk", type=int, default=1)
    made.add_argument("--num-draft-tokens", type=int)
    made.add_argument("--max-running-requests", type=int)
    made.add_argument("--context-length", type=int)
    made.add_argument("--algorithm", help="what the server will be started with; EAGLE3 when left out")
    made.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    made.add_argument("--release", default=SERVER.partition("==")[2], help="the SGLang release that serves")
    made.add_argument(
        "--recapture", action="store_true",
        help="also run the target over a few rows of the features once more, in this process: are the states the same",
    )  # fmt: skip
    made.add_argument("--no-vllm", action="store_true", help="the drafter will not be served with vLLM")
    made.add_argument("--sample", type=int, default=64, help="rows looked at")
    made.add_argument("--trust-remote-code", action="store_true", help="run the code in the target's folder")
    made.add_argument("--json", action="store_true", help="JSON instead of a table")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the doctor; returns the exit code."""
    made = parser()
    options = made.parse_args(arguments)
    if arguments is not None and not arguments:
        made.error("name a profile, or what is to be checked: --target, --draft, --corpus, --features, --server ...")
    if options.profile:
        made.error(f"a profile goes without options: python -m eagle3lab doctor {options.profile}")
    if options.recapture and not (options.target and options.features):
        made.error("--recapture needs --target and --features")
    try:
        target = resolve_target(options.target) if options.target else None
        options.draft = find_draft(options.draft) if options.draft else None
        rows = run_doctor(
            Subject(
                target=target,
                aux_layers=options.aux_layers,
                prepared=options.prepared,
                corpus=options.corpus,
                features=options.features,
                vocab_map=options.vocab_map,
                draft=options.draft,
                spec=_spec(options, target),
                release=options.release,
                server=options.server,
                benchmark=options.benchmark,
                vllm=not options.no_vllm,
                recapture=options.recapture,
                trust_remote_code=options.trust_remote_code,
                sample=options.sample,
            )
        )
    except (TargetError, CheckpointError, SpecError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    print(as_json(rows) if options.json else as_text(rows))
    return exit_code(rows)


def _spec(options: argparse.Namespace, target: Path | None) -> ServerSpec | None:
    if not options.launch:
        return None
    if target is None:
        raise SpecError("--launch needs --target")
    return ServerSpec(
        str(target),
        draft=str(options.draft) if options.draft else None,
        algorithm=options.algorithm,
        num_steps=options.num_steps,
        topk=options.topk,
        num_draft_tokens=options.num_draft_tokens,
        device=options.device,
        max_running_requests=options.max_running_requests,
        context_length=options.context_length,
        trust_remote_code=options.trust_remote_code,
    )


if __name__ == "__main__":
    sys.exit(main())
