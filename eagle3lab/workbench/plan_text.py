"""A plan as text for a terminal of 120 columns: stages and values, counts, bytes, hours, commands."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from .estimates import KEPT_CHECKPOINTS, hours_text, size_text
from .outlook import Outlook
from .params import CELL_DEFAULT
from .plan import StagePlan
from .server_commands import server_commands
from .stages import STAGES

WIDTH = 119


def stages_text(rows: Iterable[StagePlan], defaults: bool = False) -> str:
    """What runs and why, with every value that is not the notebook's own (`defaults`: those too)."""
    lines = []
    for row in rows:
        verb = "run " if row.will_run else "skip"
        lines += _wrapped(f"{verb} {row.stage.label:<15} {row.run_id:<36} {row.why}", "", " " * 58)
        for name, value in row.resolved.values.items():
            origin = row.resolved.origins[name]
            if defaults or origin != CELL_DEFAULT:
                lines += _wrapped(f"{name} = {value!r}  ({origin.rsplit('/', 1)[-1]})", " " * 7, " " * 11)
    return "\n".join(lines)


def commands_text(rows: Sequence[StagePlan], overrides: Sequence[tuple[str, str]] = ()) -> str:
    """The commands that run these stages, and the servers that they start on GPUs."""
    profile = rows[0].profile
    written = {name: f" -p {name} {shlex.quote(value)}" for name, value in overrides}
    lines = ["", "Commands"]
    if len(rows) == len(STAGES):
        lines += [f"  python -m eagle3lab run {profile}{''.join(written.values())}", "  or stage by stage:"]
    for row in rows:
        own = "".join(text for name, text in written.items() if name in row.resolved.values)
        lines.append(f"  python -m eagle3lab run {profile} --only {row.stage.name}{own}")
    servers = [(row, *each) for row in rows for each in server_commands(row.stage.name, row.resolved.values)]
    if servers:
        lines += ["", "Servers that these start themselves (PORT: a free one, DRAFT: the drafter of 04_training)"]
    for row, purpose, command in servers:
        lines += [f"  {row.stage.label}, {purpose}", *_continued(command)]
    return "\n".join(lines)


def not_there_text(missing: Iterable[str]) -> str:
    """What must be there before a run starts anything."""
    lines = ["", "Not there yet, and `run` starts nothing without it"]
    return "\n".join(lines + [line for text in missing for line in _wrapped(text, "  ", "    ")])


def outlook_text(outlook: Outlook, rows: Sequence[StagePlan]) -> str:
    """Counts, bytes and hours, each with what it was reckoned from."""
    values = {row.stage.name: row.resolved.values for row in rows}
    parts = (_counts(outlook, values), _sizes(outlook), _hours(outlook, values), _serving(outlook))
    return "\n".join(line for part in parts for line in part)


def _counts(outlook: Outlook, values) -> Iterator[str]:
    facts, inference = outlook.facts, values["inference"]
    heldout = values["data_prep"]["limit_heldout"]
    yield from ("", f"Counts, as stated in plan.yaml; held-out rows come on top, at most {heldout} a set")
    yield f"  {'set':<24}{'kind':<12}{'partition':<11}{'samples':>10}"
    for name, each in facts.sets.items():
        yield f"  {name:<24}{each.kind:<12}{each.partition:<11}{each.samples:>10,}"
    yield f"  {'together':<47}{facts.samples:>10,}"
    own = sum(each.samples for each in facts.sets.values() if each.kind == "tokenized")
    yield f"  {own:,} hold the target's own answers, {sum(outlook.answers.values()):,} are to be answered:"
    limits = {"short": ("concurrency", "max_tokens"), "long": ("long_concurrency", "long_max_tokens")}
    for partition, count in outlook.answers.items():
        if count:
            at_a_time, most = (inference[name] for name in limits[partition])
            yield f"  {partition:<6}{count:>8,} prompts, {at_a_time} at a time, answers of at most {most:,} tokens"


def _sizes(outlook: Outlook) -> Iterator[str]:
    facts, draft = outlook.facts, outlook.draft
    teacher = "at every slot" if outlook.teacher_share == 1 else f"at {outlook.teacher_share:.0%} of the slots"
    yield from ("", f"Feature store, estimated, assuming {facts.samples:,} samples of {facts.sample_tokens:,} tokens,")
    yield f"  states of layers {outlook.aux_layers}, each {facts.hidden_size:,} wide, and a teacher {teacher}"
    yield f"  {'codec':<16}{'bytes a token':>14}{'store':>12}"
    for codec, size in outlook.token_bytes.items():
        mark = "  <- codec of 03_extraction" if codec == outlook.codec else ""
        yield f"  {codec:<16}{size:>14,.0f}{size_text(outlook.store_bytes[codec]):>12}{mark}"
    yield from ("", f"Drafter: {draft.fused:,} -> {draft.hidden_size:,} by fc; {draft.parameters / 1e6:,.0f} M weights "
                    f"with a vocabulary of {draft.draft_vocab_size:,}")  # fmt: skip
    yield f"  exported (bfloat16)          {size_text(draft.exported_bytes):>10}"
    kept = KEPT_CHECKPOINTS * outlook.checkpoint_bytes
    yield f"  checkpoints of 04_training   {size_text(kept):>10}  {KEPT_CHECKPOINTS}, each with the optimizer's state"


def _hours(outlook: Outlook, values) -> Iterator[str]:
    yield from ("", "Hours, estimated from stated throughputs")
    for time in outlook.times:
        told = f"{STAGES[time.stage].label:<16}{hours_text(time.hours):>9}  assuming {time.assuming}"
        yield from _wrapped(told, "  ", " " * 29)
    limit = values["doctor"]["limit_hours"]
    verdict = "above" if outlook.hours > limit else "within"
    yield f"  {'together':<16}{hours_text(outlook.hours):>9}  {verdict} limit_hours = {limit:g}"
    rate = values["doctor"]["generate_tok_s"]
    yield (
        f"  At most {hours_text(outlook.most_generation_hours)} for 02_inference: if every answer had its "
        f"max_tokens, {outlook.most_answer_tokens:,} together, at {rate:g} tok/s"
    )


def _serving(outlook: Outlook) -> Iterator[str]:
    tokens = ", ".join(map(str, outlook.draft_tokens))
    yield from ("", f"Draft tokens to be measured in 06_serving: {tokens}")
    if outlook.served:
        plain = outlook.facts.plain_tok_s
        yield f"  served before, against plain decoding at {plain:g} tok/s, {1000 / plain:.1f} ms a step:"
    for one in outlook.served:
        verdict = "it paid" if one.accept_length > one.pays_above else "it did not pay"
        yield (
            f"  {one.draft_tokens:>3} draft tokens: {one.tok_s:g} tok/s at accept length {one.accept_length:g}, "
            f"{one.cycle_ms:.1f} ms a cycle: pays above {one.pays_above:.2f}; {verdict}"
        )


def _continued(command: str) -> list[str]:
    """A command over several lines that a shell reads as one, broken before flags only."""
    lines = ["    "]
    for part in command.split(" --"):
        flag = part if lines == ["    "] else f" --{part}"
        if len(lines[-1]) + len(flag) > WIDTH - 2:
            lines[-1] += " \\"
            lines.append(f"     {flag}")
        else:
            lines[-1] += flag
    return lines


def _wrapped(text: str, first: str, next_lines: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=next_lines, break_on_hyphens=False, break_long_words=False
    )
