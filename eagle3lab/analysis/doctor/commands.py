"""The command that mends what a check found, or that comes next once it is mended by hand.

PROFILE and words in capitals are for the reader to fill in; paths and addresses that the doctor was given are filled
in by it. No command writes anew what was not found to be wrong, nor trains a drafter again that was not trained here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from eagle3lab.analysis.doctor.report import Check
from eagle3lab.engines.servers.draft_guards import LONGER_ROWS

AGAIN = "python -m eagle3lab run PROFILE"
EXTRACTION_PLAN = "python -m eagle3lab plan PROFILE --from extraction"
DOCTOR, TRUST = "python -m eagle3lab doctor", "--trust-remote-code"
SERVE = "python -m sglang.launch_server --model-path {target} --speculative-draft-model-path {draft}"
EAGLE3 = f"{SERVE} --speculative-algorithm EAGLE3"
CHAIN = f"{EAGLE3} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
TARGET, DRAFT = f"{DOCTOR} --target {{target}}", f"{DOCTOR} --target {{target}} --draft {{draft}}"
DATA, ANSWERS = f"{AGAIN} --from data_prep --force", f"{AGAIN} --from inference --force"
STATES, TRAIN = f"{AGAIN} --from extraction --force", f"{AGAIN} --from training --force"
MEASURE = f"{AGAIN} --only serving --force"
LENGTHS = f"{AGAIN} --from data_prep -p max_prompt_tokens NUMBER -p max_tokens NUMBER"
CORPUS, STORE = f"{TARGET} --corpus {{corpus}}", f"{TARGET} --features {{features}} --corpus {{corpus}}"
SERVER = f"{DRAFT} --server {{server}}"
ALL_WEIGHTS = "from eagle3lab.analysis import doctor; print(doctor.check_finite('{target}', 2**60))"
VLLM = "python -m vllm.entrypoints.openai.api_server --model {target} --speculative-config"
VLLM_DRAFT = '{{"method": "eagle3", "model": "{draft}", "num_speculative_tokens": 3}}'
MACHINE = f"{AGAIN} --only doctor"
UNKNOWN = {  # what stands for an artefact that was not given
    **{name: name.upper() for name in ("target", "draft", "layers")},
    "server": "URL",
    **{name: f"runs/ID/{name}" for name in ("prepared", "features")},
    "corpus": "runs/ID/corpus.parquet",
    "vocab_map": "runs/ID/vocab_map.safetensors",
    "benchmark": "runs/ID/benchmark.json",
}

# an artefact that was not given, or that cannot be read
AREA_COMMANDS: dict[str, str] = {
    "target": TARGET,
    "prepared": f"{TARGET} --prepared {{prepared}}",
    "corpus": CORPUS,
    "features": f"{TARGET} --features {{features}}",
    "vocab_map": f"{DOCTOR} --vocab-map {{vocab_map}}",
    "draft": DRAFT,
    "spec": f"{DRAFT} --launch",
    "server": SERVER,
    "benchmark": f"{DOCTOR} --benchmark {{benchmark}}",
    "parity": f"{AGAIN} --only diagnostics",
}

# a row that was not checked: the doctor with what the row lacked, or what else tells it
UNCHECKED: dict[str, str] = {
    **AREA_COMMANDS,
    "target weights": f'python -c "{ALL_WEIGHTS}"',
    "prompts as the template renders them": f"{TARGET} --prepared {{prepared}}",
    **dict.fromkeys(("answers' ends", "prompts end as the template does", "thoughts kept"), CORPUS),
    **dict.fromkeys(("features fresh", "answers as the target writes"), STORE),
    "features recaptured": f"{TARGET} --features {{features}} --recapture",
    "draft vocabulary": f"{DOCTOR} --corpus {{corpus}} --vocab-map {{vocab_map}}",
    **dict.fromkeys(("draft head rows", "draft embedding", "draft for its target"), DRAFT),
    "draft RoPE": f"{AGAIN} --only diagnostics -p draft {{draft}}",
    "draft vocabulary as extracted": f"{DRAFT} --vocab-map {{vocab_map}}",
    "draft tensors": SERVER,
    "draft in vLLM": f"{VLLM} '{VLLM_DRAFT}'",
    "launch load": f"{DRAFT} --launch --max-running-requests NUMBER",
    "server load": f"{CHAIN} --max-running-requests NUMBER",
    "server accept length": f"{AGAIN} --only diagnostics -p server_url {{server}}",
    **dict.fromkeys(("server drafter", "server target", "server template"), SERVER),
    **dict.fromkeys(("break-even", "speed-up by concurrency"), f'{AGAIN} --only serving -p num_steps "[1, 2]"'),
}  # fmt: skip

# a fault or a warning
COMMANDS: dict[str, str] = {
    **AREA_COMMANDS,
    "target files": f"{AGAIN} -p target TARGET",
    "target weights": f"{AGAIN} -p target TARGET",
    "tokenizer": f"{TARGET} {TRUST}",
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
    "draft context": DRAFT,
    **dict.fromkeys(("draft network", "draft options"), f"{DRAFT} --release RELEASE"),
    **dict.fromkeys(("launch flag", "server flag"), EAGLE3),
    **dict.fromkeys(("launch chain or tree", "server chain or tree"), CHAIN),
    **dict.fromkeys(("launch load", "server load"), f"{CHAIN} --max-running-requests NUMBER"),
    "launch guards": f"{DRAFT} --launch",
    "server": "curl {server}/health",
    "server accept length": f"{AGAIN} --only diagnostics -p server_url {{server}}",
    "server drafter": EAGLE3,
    "server target": EAGLE3,
    "server template": f"{EAGLE3} --tokenizer-path {{target}}",
    "server guards": SERVER,
    "break-even": f'{MEASURE} -p num_steps "[1, 2]"',
    "speed-up by concurrency": MEASURE,
    "simulated = served": f"{AGAIN} --only diagnostics",
}  # fmt: skip


def with_commands(rows: Iterable[Check], given: Mapping[str, object], own_draft: bool = False) -> list[Check]:
    """The rows; those that are not ok with the command that comes next. given: what the doctor was given, and `layers`
    that the target could be read at, where known. own_draft: the drafter was trained here, and can be again."""
    known = {name: str(given.get(name) or stands_for) for name, stands_for in UNKNOWN.items()}
    texts = ((row, "" if row.verdict == "ok" else _command(row, own_draft, known)) for row in rows)
    return [replace(row, command=text + _trust(text, given)) for row, text in texts]


def _trust(text: str, given: Mapping[str, object]) -> str:
    """The switch that the doctor was started with, and needs again for a target whose folder holds code."""
    needed = given.get("trust_remote_code") and text.startswith(DOCTOR) and TRUST not in text
    return f" {TRUST}" if needed else ""


def _command(row: Check, own_draft: bool, known: Mapping[str, str]) -> str:
    """The check's own command, else by its name; but whichever check finds that the training's rows were too short,
    only longer rows mend it. A drafter that was not trained here is mended by hand, and then looked at again."""
    if row.command:
        return row.command
    if row.verdict == "not checked":
        return UNCHECKED.get(row.check, "").format(**known)
    command = LENGTHS if LONGER_ROWS in row.remedy else COMMANDS.get(row.check, "")
    trains = command in (TRAIN, LENGTHS) and row.check.startswith("draft")
    return (DRAFT if trains and not own_draft else command).format(**known)
