"""The field's failure catalogue: what has gone wrong with EAGLE-3 drafters, and the checks that see it.

`checks` are the names of doctor rows. Where a failure leaves no trace in any file, `note` says why, and the check is
one that needs a running model.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from eagle3lab.analysis.doctor.report import Check
from eagle3lab.analysis.suspects import REMEDIES


@dataclass(frozen=True)
class Failure:
    """One entry. cause: the cause of `suspects.py` that it is, for ranking why simulated and served differ."""

    failure: str
    checks: tuple[str, ...]
    cause: str = ""
    note: str = ""


PARITY = "simulated = served"
SERVED_LENGTH = "server accept length"
SYMPTOMS = (PARITY, SERVED_LENGTH)  # they show that something is wrong, and not what
RECAPTURED = "features recaptured"
VLLM = "draft in vLLM"  # tells of a server that may not be the one that was asked: no fact of the ranking

CATALOGUE = (
    Failure(
        "flag EAGLE instead of EAGLE3 (tau exactly 1.00)",
        ("launch flag", "server flag", SERVED_LENGTH), "flag",
    ),
    Failure(
        "aux layer off by one",
        ("draft layers", VLLM, "features layers", RECAPTURED, PARITY), "layers",
        "A folder that does not say which layers it was trained on cannot be judged; what is served can.",
    ),
    Failure("draft weights named for another engine, silently dropped", ("draft tensors", VLLM), "tensors"),
    Failure("d2t stored as absolute ids instead of offsets, or missing", ("draft d2t", VLLM), "vocabulary map"),
    Failure("lm_head rows in another order than d2t", ("draft head rows",), "vocabulary map"),
    Failure("draft_vocab_size larger than distinct ids", ("draft vocabulary", "draft d2t")),
    Failure(
        "random embedding exported, or draft lm_head overwritten by the target's",
        ("draft embedding", "draft head rows"), "head",
    ),
    Failure("RoPE theta/scaling/max positions different from training", ("draft RoPE", "draft context"), "rope"),
    Failure("norm flags the engine does not know", ("draft network", "draft options", VLLM), "norm"),
    Failure(
        "chat template or system prompt different between data and serving",
        (
            "template as served", "template without a clock", "prompts as the template renders them",
            "prompts end as the template does", "server template",
        ), "template",
        "`doctor --server` compares the server's template where the server's tokenizer folder is on this machine. "
        "05_diagnostics sends token ids, which no template touches, and what a client adds is in no file.",
    ),
    Failure("loss mask all zero or all one", ("corpus loss masks", "features loss masks")),
    Failure("reasoning text blanked by the template (Kimi)", ("thoughts kept",)),
    Failure("trained on answers of another model", ("answers of the target", "answers as the target writes")),
    Failure("answers cut by max_tokens counted as complete", ("answers' ends",)),
    Failure(
        "stale vocabulary map or stale features reused",
        ("vocabulary map fresh", "features fresh", "draft vocabulary as extracted"), "vocabulary map",
    ),
    Failure("NaN/Inf in hidden states", ("features states", "target weights", "draft weights")),
    Failure("padded rows taken for real", ("features padding", "features states")),
    Failure(
        "target quantised or rotated differently between extraction and serving",
        ("server target", RECAPTURED, "answers as the target writes"), "target",
        "A rotation inside the weights is in no config; states captured again show it.",
    ),
    Failure("padding side", ("features padding",)),
    Failure(
        "position ids off by one",
        (RECAPTURED, PARITY), "position",
        "No file holds positions: they exist only while a model runs, so it is seen by comparing two that run.",
    ),
    Failure("trained context shorter than served context", ("draft context",)),
    Failure(
        "topk > 1 with few draft tokens (worse than a chain)", ("launch chain or tree", "server chain or tree")
    ),
    Failure("more draft tokens than break-even allows", ("break-even",)),
    Failure(
        "concurrency so high that verification is compute-bound",
        ("launch load", "server load", "speed-up by concurrency"),
    ),
)  # fmt: skip


def causes_shown(rows: Iterable[Check]) -> dict[str, str]:
    """Causes (of `suspects.REMEDIES`) that faults of the doctor show, and what shows them: the facts that rank before
    guesses. Rows that are symptoms (nothing is accepted, served is not simulated) do not count."""
    by_check = {check: entry.cause for entry in CATALOGUE for check in entry.checks if entry.cause in REMEDIES}
    found: dict[str, str] = {}
    for row in rows:
        cause = by_check.get(row.check)
        if cause and row.verdict == "fault" and row.check not in (*SYMPTOMS, VLLM):
            found.setdefault(cause, f"{row.check}: {row.found}")
    return found


def causes_excluded(rows: Iterable[Check]) -> set[str]:
    """Causes that an ok row rules out: a server that says it runs EAGLE3 has the right flag, and so on."""
    ruled_out = {"server flag": "flag", "draft tensors": "tensors"}
    return {ruled_out[row.check] for row in rows if row.verdict == "ok" and row.check in ruled_out}
