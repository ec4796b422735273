"""The text of a drafter's model card: what it is, its numbers with their settings, its data, its limits.

Nothing is said that no record says. Words of records (names of sets, paths, headlines) appear letter for letter: they
are escaped for Markdown and for the HTML that Markdown lets through.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import yaml

from .progress import duration
from .server_commands import speculation
from .stages import STAGES
from .standing import measurable, standing_warnings
from .status_pages import markdown_table

_RECIPE = (
    "ttt_steps", "loss_mask_kind", "lk_weight", "step_decay", "optimizer", "lr", "head_lr", "epochs", "batch_tokens",
    "accumulate", "max_length", "compute_dtype", "warm_start", "seed",
)  # fmt: skip


@dataclass(frozen=True)
class CardFacts:
    """What a card is made of, as the records hold it.

    target: as the training named it. license, license_name: of the drafter, as hubs name it, or None; target_license:
    where the terms of the target stand, "" where nothing tells. base_model: the target's name on a hub, or None.
    config, training: config.json and training.json of the drafter. store: store.json of its features, or {}. accept:
    the accept lengths that 05 summarised (checks.json). records, results: stage -> run.json and results.json of the
    runs that belong to it.
    """

    target: str
    license: str | None
    license_name: str | None
    target_license: str
    base_model: str | None
    config: Mapping[str, Any]
    training: Mapping[str, Any]
    weights_sha256: str
    store: Mapping[str, Any]
    accept: list[Mapping[str, Any]]
    records: Mapping[str, Mapping[str, Any]]
    results: Mapping[str, Mapping[str, Any]]

    def value(self, stage: str, name: str) -> Any:
        """A parameter of a stage's run; None where the run is gone or has no such parameter."""
        return self.records.get(stage, {}).get("parameters", {}).get(name, {}).get("value")

    def result(self, stage: str, name: str) -> Any:
        return self.results.get(stage, {}).get(name)


def card_text(facts: CardFacts) -> str:
    """The whole card, Markdown with a hub's front matter."""
    named = PurePath(facts.base_model or facts.target).name
    sections = {
        "Accept length": _accept(facts),
        "Speed": _speed(facts),
        "Launch": _launch(facts),
        "The drafter": _drafter(facts),
        "Data": _data(facts),
        "Training": _training(facts),
        "Limits": "\n".join(f"- {line}" for line in _limits(facts)),
        "License": _license(facts),
        "Records": _records(facts),
    }
    first = (
        f"# EAGLE-3 drafter for {words(named)}\n\n"
        f"A draft network for speculative decoding with {words(named)}, trained on answers of that model. It proposes "
        "tokens, the target verifies them: greedy output stays what the target alone would write. It is of no use "
        "with another target."
    )
    body = [first, *(f"## {title}\n\n{text}" for title, text in sections.items())]
    return _front_matter(facts) + "\n\n".join(body) + "\n"


def plain(value: Any) -> str:
    """A value as Markdown shows it letter for letter; HTML is left to `words` and to tables, which escape it."""
    text = " ".join(str(value).split())
    return re.sub(r"([\\`*\[\]~]|(?<!\w)_|_(?!\w)|^#)", r"\\\1", text)


def words(value: Any) -> str:
    """The same for running text, HTML escaped too."""
    return html.escape(plain(value), quote=False)


def _front_matter(facts: CardFacts) -> str:
    # a hub checks a license that stands there: none stated is left out
    stated = {"license": facts.license, "license_name": facts.license_name}
    fields = {
        **{name: value for name, value in stated.items() if value},
        "library_name": re.split(r"[=<>!~ ]", str(facts.value("training", "serve_with") or "sglang"))[0],
        "pipeline_tag": "text-generation",
        "tags": ["eagle3", "speculative-decoding", "draft-model", "eagle3lab"],
    }
    if facts.base_model:
        fields["base_model"] = facts.base_model
    return f"---\n{yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)}---\n\n"


def _accept(facts: CardFacts) -> str:
    if not facts.accept:
        profile = facts.records["training"]["profile"]
        return f"Not measured yet (`python -m eagle3lab run {profile} --only diagnostics`)."
    rows = []
    for one in [each for each in facts.accept if "shuffled" not in each["setting"]["engine"]]:  # controls of 05
        s, between = one["setting"], one.get("interval")
        rows.append({
            "prompts": plain(s["set"]), "count": one["prompts"], "how": plain(s["engine"]),
            "accept length": f"{one['accept_length']:.2f}",
            "95 % interval": f"{between[0]:.2f} to {between[1]:.2f}" if between else "",
            "num_steps, topk, num_draft_tokens": f"{s['num_steps']}, {s['topk']}, {s['num_draft_tokens']}",
            "temperature": f"{s['temperature']:g}",
        })  # fmt: skip
    return (
        "Tokens committed per verification of the target, the bonus token included: 1.00 is nothing accepted. The "
        "prompts are held out; intervals are from resampled prompts; the random drafter is the floor.\n\n"
        + markdown_table(rows)
    )


def _speed(facts: CardFacts) -> str:
    measured = facts.result("serving", "rows")
    if not measured:
        return f"Not measured yet (`python -m eagle3lab run {facts.records['training']['profile']} --only serving`)."
    rows, known = [], measurable(facts.results["serving"])
    for one in measured:
        speculates = one["accept_length"] is not None
        rows.append({
            "decoding": plain(one["setting"]), "streams": one["concurrency"], "tok/s": f"{one['tok_s']:.1f}",
            "against plain": f"x{one['speedup']:.2f}" if speculates else "",
            "accept length": f"{one['accept_length']:.2f}" if speculates else "",
            "break-even": (f"{one['break_even']:.2f}" if known else "not measurable") if one["break_even"] else "",
            "answers that differ": "" if one["differing"] is None else one["differing"],
        })  # fmt: skip
    first, told = measured[0], facts.records["serving"]
    how = (
        f"{facts.value('serving', 'engine')} engine, {facts.value('serving', 'dtype')}, {first['prompts']} held-out "
        f"prompts, at most {facts.value('serving', 'max_tokens')} tokens each, {first['rounds']} rounds, on "
        f"{_machine(told)}"
    )
    meaning = "Above its break-even a setting is faster than plain decoding on that machine."
    if not known:
        meaning = "That machine was not quiet: the speeds tell no break-even (see Limits)."
    return f"{markdown_table(rows)}\n\n{words(how)}. {meaning}"


def _launch(facts: CardFacts) -> str:
    best = facts.result("serving", "best") or {}
    steps = best.get("num_steps") or facts.training["recipe"]["ttt_steps"]
    more = speculation(steps, best.get("topk", 1), best.get("num_draft_tokens"))
    said = "the fastest setting measured" if best else "a chain as long as the training unrolled"
    trusted = ["--trust-remote-code"] if facts.value("inference", "trust_remote_code") else []
    sglang = " ".join(["python -m sglang.launch_server --model-path TARGET", *trusted, *more])
    vllm = f'{{"method": "eagle3", "model": "DRAFT", "num_speculative_tokens": {steps}}}'
    oldest = facts.training.get("oldest_engines") or {}
    releases = "".join(f" {words(engine)} from {words(release)} on." for engine, release in oldest.items())
    return (
        f"TARGET is the model named above, DRAFT this folder; {said}.{releases}\n\n```bash\n{sglang}\n"
        f"{' '.join(['vllm serve TARGET', *trusted])} --speculative-config '{vllm}'\n```\n\n"
        "The value must be exactly `EAGLE3`: with `EAGLE` SGLang starts, and accepts nothing. Other settings may be "
        "faster on another machine."
    )


def _drafter(facts: CardFacts) -> str:
    c, sizes = facts.config, facts.training["draft_config"]
    layers = ", ".join(map(str, sizes["aux_layers"]))
    rows = [
        ("target", plain(facts.base_model or PurePath(facts.target).name)),
        ("target's weights and tokenizer with template, as fingerprinted", _fingerprint(facts)),
        ("architecture", plain(c["architectures"][0])),
        ("trained weights", f"{facts.result('training', 'weights') or 0:,}"),
        ("hidden size, intermediate size", f"{c['hidden_size']}, {c['intermediate_size']}"),
        ("draft vocabulary", f"{c['draft_vocab_size']:,} of {c['vocab_size']:,} ids"),
        ("target layers it reads (indices of hidden_states)", layers),
        ("precision of the file", plain(c.get("torch_dtype"))),
        ("sha256 of model.safetensors", plain(facts.weights_sha256)),
    ]
    return markdown_table([{"what": what, "value": value} for what, value in rows])


def _fingerprint(facts: CardFacts) -> str:
    told = facts.store.get("fingerprint") or {}
    return ", ".join(str(told[name])[:16] for name in ("target", "template") if name in told) or "unknown"


def _data(facts: CardFacts) -> str:
    quality = facts.result("inference", "quality") or []
    rows = [
        {"set": plain(one["set"]), "answers": f"{one['answers']:,}", "tokens": f"{one['tokens']:,}",
         "cut at the limit": f"{one['cut']:.0%}"}
        for one in quality
    ]  # fmt: skip
    sets = ", ".join(_set_name(one) for one in facts.value("data_prep", "sets") or []) or "unknown"
    dtype = facts.result("inference", "dtype") or facts.value("inference", "dtype")
    how = (
        f"at temperature {facts.value('inference', 'temperature')}, at most {facts.value('inference', 'max_tokens')} "
        f"tokens, in {dtype}, by the {facts.value('inference', 'engine')} engine"
    )
    if not rows:
        return "The records of the data are not there any more."
    text = f"Sets: {words(sets)}. The answers were written by the target itself {words(how)}."
    return f"{text}\n\n{markdown_table(rows)}"


def _set_name(item: str) -> str:
    """A set's name, and its hub address; a path on somebody's disk is left out."""
    name, _, place = item.partition(":")
    _, _, address = place.partition(":hub:")
    return f"{name} ({address})" if address else name


def _training(facts: CardFacts) -> str:
    record, recipe = facts.records["training"], facts.training["recipe"]
    slots, steps = facts.result("training", "slots_per_epoch"), facts.result("training", "steps")
    text = (
        f"{facts.training['rows']:,} rows, {slots or 0:,} tokens a pass, {steps or 0:,} optimizer steps, "
        f"{duration(record['seconds'])} on {_machine(record)}."
    )
    rows = [{"setting": name, "value": plain(_shown(recipe[name]))} for name in _RECIPE if name in recipe]
    return f"{words(text)}\n\n{markdown_table(rows)}"


def _shown(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else value


def _limits(facts: CardFacts) -> Iterator[str]:
    if length := facts.training.get("trained_length"):
        yield f"Trained on rows of at most {length:,} tokens; expect less in longer contexts."
    coverage = (facts.result("extraction", "coverage") or {}).get("heldout")
    if coverage is not None:
        yield f"The draft vocabulary names {coverage:.1%} of held-out answer tokens; others are never proposed."
    yield "Another revision, quantisation or chat template of the target than the one above costs accept length."
    if facts.value("inference", "temperature") == 0:
        yield "Trained on greedy answers; sampled decoding accepts less."
    if not facts.base_model:
        yield "The target was a folder on its maker's disk: the card cannot say which public model that is."
    rest = {stage: results for stage, results in facts.results.items() if stage != "extraction"}  # said above
    for stage, text in standing_warnings(rest):
        told = text.partition("; first: ")[0]  # what follows are a row and paths of the maker's disk
        yield f"{STAGES[stage].label}: {words(told)}."


def _license(facts: CardFacts) -> str:
    stated = (
        "No license is stated: whoever publishes this drafter must state one (`license` in the first lines of this "
        "file; `--license` where the card is made)."
    )
    if named := facts.license_name or facts.license:
        stated = f"The drafter's license is {words(named)}, as its maker states."
    where = f" ({words(facts.target_license)})" if facts.target_license else ""
    return (
        f"{stated} It was made with the weights and the answers of the target and inherits the terms of the target's "
        f"license{where}."
    )


def _records(facts: CardFacts) -> str:
    rows = [
        {"stage": STAGES[stage].label, "run": plain(facts.records[stage]["run_id"])}
        for stage in STAGES
        if stage in facts.records
    ]
    record = facts.records["training"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items() if version)
    commit = record["git"]["commit"] or "unknown"
    changed = ", with changes" if record["git"]["dirty"] else ""
    return f"{markdown_table(rows)}\n\n{words(versions)}; commit {words(commit)}{changed}."


def _machine(record: Mapping[str, Any]) -> str:
    device = record["device"]
    return device["gpu"] or f"{device['cores']} cores of {device['cpu']}"
