"""The command that mends what a check found, or that comes next once it is mended by hand.

PROFILE and words in capitals are for the reader to fill in; paths and addresses that the doctor was given are filled
in by it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from eagle3lab.analysis.doctor.report import Check
from eagle3lab.engines.servers.draft_guards import LONGER_ROWS

AGAIN = "python -m eagle3lab run PROFILE"
DOCTOR = "python -m eagle3lab doctor"
SERVE = "python -m sglang.launch_server --model-path {target} --speculative-draft-model-path {draft}"
EAGLE3 = f"{SERVE} --speculative-algorithm EAGLE3"
CHAIN = f"{EAGLE3} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
TARGET, DRAFT = f"{DOCTOR} --target {{target}}", f"{DOCTOR} --target {{target}} --draft {{draft}}"
DATA, ANSWERS = f"{AGAIN} --from data_prep --force", f"{AGAIN} --from inference --force"
STATES, TRAIN = f"{AGAIN} --from extraction --force", f"{AGAIN} --from training --force"
MEASURE = f"{AGAIN} --only serving --force"
LONGER = f"{AGAIN} --from data_prep -p max_prompt_tokens NUMBER -p max_tokens NUMBER"

COMMANDS: dict[str, str] = {
    "target files": f"{AGAIN} -p target TARGET",
    "target weights": f"{AGAIN} -p target TARGET",
    "tokenizer": f"{TARGET} --trust-remote-code",
    "aux layers": f'{AGAIN} --from extraction -p aux_layers "{{layers}}"',
    **dict.fromkeys(("chat template", "end token", "template as served"), TARGET),
    **dict.fromkeys(
        ("template without a clock", "prompts as the template renders them", "prompts end as the template does",
         "thoughts kept", "held-out prompts apart", "corpus token ids"), DATA,
    ),
    **dict.fromkeys(("corpus", "corpus loss masks", "answers' ends", "answers as the target writes"), ANSWERS),
    "answers of the target": f"{AGAIN} --from inference -p references none",
    "features files": f"{AGAIN} --only extraction",
    **dict.fromkeys(
        ("features fresh", "features layers", "features rows", "features states", "features loss masks",
         "features padding", "features recaptured", "vocabulary map", "vocabulary map fresh"), STATES,
    ),
    "draft vocabulary": f"{AGAIN} --from extraction -p draft_vocab_size NUMBER",
    **dict.fromkeys(
        ("draft", "draft RoPE", "draft vocabulary as extracted", "draft weights", "draft head rows", "draft embedding",
         "draft sizes", "draft layers", "draft d2t", "draft tensors", "draft in vLLM"), TRAIN,
    ),
    **dict.fromkeys(("draft network", "draft options", "draft for its target"), f"{DRAFT} --release RELEASE"),
    "draft context": LONGER,
    **dict.fromkeys(("launch flag", "server flag"), EAGLE3),
    **dict.fromkeys(("launch chain or tree", "server chain or tree"), CHAIN),
    **dict.fromkeys(("launch load", "server load"), f"{CHAIN} --max-running-requests NUMBER"),
    "launch guards": f"{DRAFT} --launch",
    "server": "curl {server}/health",
    "server accept length": f"{AGAIN} --only diagnostics -p server_url {{server}}",
    "server drafter": EAGLE3,
    "server target": EAGLE3,
    "server template": f"{EAGLE3} --tokenizer-path {{target}}",
    "server guards": f"{DRAFT} --server {{server}}",
    "break-even": f'{MEASURE} -p num_steps "[1, 2]"',
    "speed-up by concurrency": MEASURE,
    "simulated = served": f"{AGAIN} --only diagnostics",
    # what was not given
    "prepared": f"{DOCTOR} --target {{target}} --prepared runs/ID/prepared",
    "features": f"{DOCTOR} --target {{target}} --features runs/ID/features",
    "vocab_map": f"{DOCTOR} --vocab-map runs/ID/vocab_map.safetensors",
    "target": TARGET,
    "spec": f"{DRAFT} --launch",
    "benchmark": f"{DOCTOR} --benchmark runs/ID/benchmark.json",
    "parity": f"{AGAIN} --only diagnostics",
}  # fmt: skip


def with_commands(rows: Iterable[Check], given: Mapping[str, object]) -> list[Check]:
    """The rows; those that are not ok with the command that comes next. given: target, draft, server, and layers that
    the target could be read at, where known."""
    known = {name: str(given.get(name) or name.upper()) for name in ("target", "draft", "server", "layers")}
    return [row if row.verdict == "ok" else replace(row, command=_command(row).format(**known)) for row in rows]


def _command(row: Check) -> str:
    """By the check; but whichever check finds that the training's rows were too short, only longer rows mend it."""
    return LONGER if LONGER_ROWS in row.remedy else COMMANDS.get(row.check, "")
