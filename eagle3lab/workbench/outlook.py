"""What a whole chain will take, reckoned from parameters and assumptions: counts, bytes, hours. Nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .assumptions import Assumptions
from .estimates import DraftSizes, break_even, bytes_per_token, hours
from .known_sets import set_name, split_option
from .params import ParameterError

Values = Mapping[str, Mapping[str, Any]]  # stage -> parameter -> value
CODECS = {"embedded": ("bf16", "fp8", "fp8+top16"), "sglang": ("bf16", "fp8")}  # shown beside the chosen one


@dataclass(frozen=True)
class StageTime:
    """Hours of a stage, or of a part of it, and in words what they were reckoned from."""

    stage: str
    hours: float
    assuming: str


@dataclass(frozen=True)
class Served:
    """What a speculative setting gave before: it pays above `pays_above`, the cost of its cycle in plain steps."""

    draft_tokens: int
    accept_length: float
    tok_s: float
    cycle_ms: float
    pays_above: float


@dataclass(frozen=True)
class Outlook:
    """The numbers of a plan.

    answers: to be made, by partition. most_answer_tokens: if all of them were as long as they may be. store_bytes: by
    codec. teacher_share: share of the slots with a teacher.
    """

    facts: Assumptions
    answers: dict[str, int]
    most_answer_tokens: int
    aux_layers: list[int]
    draft: DraftSizes
    codec: str
    teacher_share: float
    token_bytes: dict[str, float]
    store_bytes: dict[str, float]
    checkpoint_bytes: int
    times: list[StageTime]
    most_generation_hours: float
    draft_tokens: list[int]
    served: list[Served]

    @property
    def hours(self) -> float:
        return sum(time.hours for time in self.times)


def reckon(values: Values, facts: Assumptions) -> Outlook:
    """The outlook of a chain. `values` has every stage. ParameterError lists all contradictions."""
    if problems := contradictions(values, facts):
        raise ParameterError("plan.yaml contradicts the parameters, change either: " + "; ".join(problems))
    inference, extraction, training = values["inference"], values["extraction"], values["training"]
    answers = {"short": 0, "long": 0}
    for each in facts.sets.values():
        if each.kind == "prompts":
            answers[each.partition] += min(each.samples, inference["limit_answers"] or each.samples)
    most = answers["short"] * inference["max_tokens"] + answers["long"] * inference["long_max_tokens"]
    layers = chosen_layers(extraction, facts)
    share = 1.0 if extraction["teach_prompts"] else facts.answer_tokens / facts.sample_tokens
    codecs = dict.fromkeys((*CODECS[extraction["engine"]], extraction["codec"]))
    sizes = facts.hidden_size, len(layers), share, facts.vocab_size
    per_token = {codec: bytes_per_token(codec, *sizes) for codec in codecs}
    tokens = facts.samples * facts.sample_tokens
    draft = drafter(values, facts)
    return Outlook(
        facts, answers, most, layers, draft, extraction["codec"], share, per_token,
        {codec: size * tokens for codec, size in per_token.items()},
        draft.checkpoint_bytes(training["optimizer"]), list(_times(values, facts, sum(answers.values()))),
        hours(most, values["doctor"]["generate_tok_s"]),
        _draft_tokens(values["serving"]),
        [
            Served(tokens, length, rate, 1000 * length / rate, break_even(length, rate, facts.plain_tok_s))
            for tokens, (length, rate) in (facts.served or {}).items()
        ],
    )  # fmt: skip


def contradictions(values: Values, facts: Assumptions) -> list[str]:
    """What in the parameters cannot be true together with the facts, a line each."""
    prep, inference = values["data_prep"], values["inference"]
    names, options = [set_name(text) for text in prep["sets"]], _options(prep["set_options"])
    found = [f"set {name!r} is in `sets` and not in plan.yaml" for name in names if name not in facts.sets]
    found += [f"set {name!r} is in plan.yaml and not in `sets`" for name in facts.sets if name not in names]
    found += [f"set {name!r} is named twice" for name in sorted({n for n in names if names.count(n) > 1})]
    longest = {"short": inference["max_tokens"], "long": inference["long_max_tokens"]}
    for name, each in facts.sets.items():
        own = options.get(name, {})
        wanted = own.get("limit_train", prep["limit_train"])
        if wanted not in (None, "all", "none") and int(wanted) != each.samples:
            found.append(f"set {name!r}: {each.samples} samples, and limit_train = {wanted}")
        for setting in ("kind", "partition"):
            if own.get(setting, getattr(each, setting)) != getattr(each, setting):
                found.append(f"set {name!r}: {setting} {getattr(each, setting)}, and set_options say {own[setting]}")
        whole = int(own.get("max_prompt_tokens", prep["max_prompt_tokens"])) + longest[each.partition]
        if each.kind == "prompts" and whole > facts.context_length:
            found.append(f"set {name!r}: prompt and answer may have {whole} tokens, the context {facts.context_length}")
    found += _model_contradictions(values, facts)
    scaling = values["scaling"]
    if scaling["vary"] == "rows" and max(scaling["amounts"], default=0) >= facts.samples:
        found.append(f"amounts = {scaling['amounts']}: subsets must be smaller than the {facts.samples} samples")
    return found


def _model_contradictions(values: Values, facts: Assumptions) -> list[str]:
    found = []
    for stage in ("doctor", "extraction"):
        layers = chosen_layers(values[stage], facts)
        if layers != sorted(set(layers)) or not layers or not 0 <= layers[0] <= layers[-1] < facts.layers:
            found.append(f"{stage}: aux_layers = {layers}: increasing ids in 0..{facts.layers - 1} are needed")
    if chosen_layers(values["doctor"], facts) != chosen_layers(values["extraction"], facts):
        found.append("aux_layers differ between doctor and extraction")
    draft = drafter(values, facts)
    if draft.draft_vocab_size > facts.vocab_size:
        found.append(f"draft_vocab_size = {draft.draft_vocab_size}: the target has {facts.vocab_size} ids")
    if draft.fused == draft.hidden_size:
        found.append(f"hidden_size = {draft.hidden_size} is the width of the aux states together: fc is skipped")
    if draft.num_attention_heads % draft.num_key_value_heads:
        heads = f"num_attention_heads = {draft.num_attention_heads}"
        found.append(f"{heads} is no multiple of num_key_value_heads = {draft.num_key_value_heads}")
    try:
        bytes_per_token(values["extraction"]["codec"], 1, 1, 1.0, 1)
    except ValueError as problem:
        found.append(str(problem))
    return found


def chosen_layers(values: Mapping[str, Any], facts: Assumptions) -> list[int]:
    """aux_layers, or the default of a target with that many layers."""
    return values["aux_layers"] or [2, facts.layers // 2, facts.layers - 3]


def drafter(values: Values, facts: Assumptions) -> DraftSizes:
    """The drafter's sizes: the target's own, but for those that training's parameters draft_... choose."""
    own = {name.removeprefix("draft_"): value for name, value in values["training"].items() if value is not None}
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    extraction = values["extraction"]
    return DraftSizes(
        **{name: own.get(name, getattr(facts, name)) for name in names},
        draft_vocab_size=extraction["draft_vocab_size"] or facts.vocab_size,
        aux_layers=len(chosen_layers(extraction, facts)),
        target_hidden_size=facts.hidden_size,
        vocab_size=facts.vocab_size,
    )


def _times(values: Values, facts: Assumptions, answers: int):
    doctor, training, serving, scaling = (values[name] for name in ("doctor", "training", "serving", "scaling"))
    rate, answer = doctor["generate_tok_s"], facts.answer_tokens
    by_tokens, words = hours(answers * answer, rate), f"{answers:,} answers of {answer} tokens at {rate:g} tok/s"
    by_answers = hours(answers, facts.answers_per_s) if facts.answers_per_s else 0.0
    if by_answers > by_tokens:
        others = f"{by_tokens:.1f} h at {answer} tokens each, {rate:g} tok/s"
        words = f"{answers:,} answers at {facts.answers_per_s:g} a second ({others})"
    yield StageTime("inference", max(by_tokens, by_answers), words)
    tokens, length = facts.samples * facts.sample_tokens, f"samples of {facts.sample_tokens:,} tokens"
    rate = doctor["extract_tok_s"]
    yield StageTime("extraction", hours(tokens, rate), f"{facts.samples:,} {length} at {rate:g} tok/s")
    rate, epochs = doctor["train_tok_s"], training["epochs"]
    passes = f"{epochs} pass{'es' if epochs > 1 else ''}"
    yield StageTime(
        "training", hours(tokens * epochs, rate), f"{facts.samples:,} {length}, {passes}, at {rate:g} tok/s"
    )
    if facts.plain_tok_s:
        asked = serving["bench_prompts"] * serving["rounds"] * (1 + len(serving["num_steps"]))
        words = f"{asked} answers of {serving['max_tokens']} tokens at {facts.plain_tok_s:g} tok/s"
        yield StageTime("serving", hours(asked * serving["max_tokens"], facts.plain_tok_s), words)
    if facts.plain_tok_s and serving["grid_concurrency"]:
        yield _grid_time(serving, facts.plain_tok_s, doctor["generate_tok_s"])
    if scaling["vary"] == "rows" and scaling["amounts"]:
        rows = int(sum(scaling["amounts"])) * len(scaling["train_seeds"])
        words = f"{rows:,} {length} in {len(scaling['amounts'])} subsets, {passes}, at {rate:g} tok/s"
        yield StageTime("scaling", hours(rows * facts.sample_tokens * epochs, rate), words)


def _grid_time(serving: Mapping[str, Any], plain: float, together: float) -> StageTime:
    """A cell answers all prompts in every round, and as many as run at a time to warm up, plainly and speculating."""
    shapes = sum(1 if topk == 1 else len(set(serving["grid_draft_tokens"])) for topk in set(serving["grid_topk"]))
    captured = serving["engine"] == "sglang" and serving["server_device"] == "cuda" and not serving["servers"]
    graphs = len(set(serving["grid_cuda_graphs"])) if captured else 1
    settings = len(set(serving["num_steps"])) * shapes * len(set(serving["grid_temperatures"])) * graphs
    prompts, answers, time = serving["bench_prompts"], 0, 0.0
    for streams in set(serving["grid_concurrency"]):
        asked = 2 * settings * (serving["rounds"] * prompts + min(streams, prompts))
        answers += asked
        time += hours(asked * serving["max_tokens"], min(streams * plain, together))
    words = (
        f"a grid of {settings * len(set(serving['grid_concurrency']))} cells: {answers:,} answers of "
        f"{serving['max_tokens']} tokens, at {plain:g} tok/s a stream and at most {together:g} together, speculating "
        "or not, with CUDA graphs or without"
    )
    return StageTime("serving", time, words)


def _draft_tokens(serving: Mapping[str, Any]) -> list[int]:
    """Verified tokens of the settings that are served: num_steps + 1 of a chain, as written of trees."""
    trees = serving["grid_draft_tokens"] if any(k > 1 for k in serving["grid_topk"]) else []
    return sorted({*(steps + 1 for steps in serving["num_steps"]), *trees})


def _options(texts: list[str]) -> dict[str, dict[str, str]]:
    """set_options by set and name; their form is a constraint of the parameters."""
    found: dict[str, dict[str, str]] = {}
    for owner, name, value in filter(None, map(split_option, texts)):
        found.setdefault(owner, {})[name] = value
    return found
