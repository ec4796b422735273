"""Warnings that stand: what the newest finished runs' results say that a reader must not overlook.

Rules look at the names in a stage's results.json and leave alone what a stage does not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

LOW_COVERAGE = 0.95  # share of held-out answer tokens that the draft vocabulary names
MANY_CUT = 0.05  # share of answers that ended at their token limit
SAME_DISTRIBUTION = 0.001  # chance below which two samples are taken for different ones
NOTHING_ACCEPTED = 1.05  # accept length up to which a drafter might as well not be there
_UNKNOWN = "not measurable"  # what an advice of 06 begins with where the speeds carry no break-even
Results = Mapping[str, Any]


def standing_warnings(results: Mapping[str, Results]) -> list[tuple[str, str]]:
    """(stage, warning) in the order of `results`: stage name -> results.json of its newest finished run."""
    return [(stage, text) for stage, values in results.items() for text in _RULES.get(stage, _none)(values)]


def _none(_: Results) -> Iterator[str]:
    yield from ()


def _doctor(results: Results) -> Iterator[str]:
    faults = results.get("faults")
    if isinstance(faults, list):
        yield from (f"fault: {text}" for text in faults)


def _data_prep(results: Results) -> Iterator[str]:
    if isinstance(results.get("lost_rows"), str):
        yield results["lost_rows"]


def _inference(results: Results) -> Iterator[str]:
    finish, answers = results.get("finish"), results.get("answers")
    if isinstance(finish, Mapping) and _number(answers):
        cut = finish.get("length", 0) / answers
        if cut > MANY_CUT:
            yield f"{cut:.0%} of {answers:,} answers were cut at their token limit; raise max_tokens"
    if _number(results.get("set_aside")):
        yield f"{results['set_aside']:,} prompts were set aside without an answer"


def _extraction(results: Results) -> Iterator[str]:
    coverage = _at(results, "coverage", "heldout")
    if _number(coverage) and coverage < LOW_COVERAGE:
        yield f"the draft vocabulary names {coverage:.1%} of held-out answer tokens: raise draft_vocab_size"


def _diagnostics(results: Results) -> Iterator[str]:
    simulated, served = (_at(results, f"accept_length_{how}", "accept_length") for how in ("simulated", "served"))
    both = _number(simulated) and _number(served)
    if both and served <= NOTHING_ACCEPTED < simulated:
        yield (
            f"the server accepts nothing (accept length {served:.2f}, simulated {simulated:.2f}): was it started with "
            "EAGLE instead of EAGLE3, or with other layers than the drafter's?"
        )
    elif _number(results.get("cycles_differing")):
        lengths = f" (accept length {simulated:.2f} simulated, {served:.2f} served)" if both else ""
        yield f"simulated differs from served in {results['cycles_differing']:,} cycles{lengths}"
    if _number(simulated) and simulated <= NOTHING_ACCEPTED:
        yield f"the drafter has learnt nothing: accept length {simulated:.2f} even where it is simulated"


def measurable(serving: Results) -> bool:
    """Whether the speeds of 06's best setting carry a break-even."""
    return not any(text.startswith(_UNKNOWN) for text in _advice(serving)[:1])  # the first is that of the best setting


def _advice(serving: Results) -> list[str]:
    advice = serving.get("advice")
    return [text for text in advice if isinstance(text, str)] if isinstance(advice, list) else []


def _serving(results: Results) -> Iterator[str]:
    best, advised = results.get("best"), _advice(results)
    yield from (text for text in advised if text.startswith(_UNKNOWN))
    if measurable(results) and isinstance(best, Mapping) and _number(best.get("speedup")) and best["speedup"] <= 1:
        text = f"slower than the baseline: x{best['speedup']:.2f} in the best setting"
        if all(_number(best.get(name)) for name in ("tok_s", "accept_length", "break_even")):
            setting = f"{best.get('setting', '?')}, {best['tok_s']:.1f} tok/s"
            text += f" ({setting}); it pays above accept length {best['break_even']:.2f} and has "
            text += f"{best['accept_length']:.2f}"
        yield text
    if _number(results.get("differing_answers")):
        yield f"{results['differing_answers']:,} answers are not those of plain decoding"
    chance = _at(results, "sampled", "p")
    if isinstance(chance, float) and chance < SAME_DISTRIBUTION:
        yield f"sampled answers are distributed otherwise than those of plain decoding (p {chance:.2g})"
    yield from (text for text in advised[1:] if text.startswith("do not speculate"))
    yield from _unmeasured(results)


def _unmeasured(serving: Results) -> Iterator[str]:
    """Settings that could not run, and requests without a usable answer: what the other numbers are not of."""
    rows, grid = (serving.get(name) if isinstance(serving.get(name), list) else [] for name in ("rows", "grid"))
    failed = serving.get("failed") if isinstance(serving.get("failed"), Mapping) else {}
    reasons = [*failed.values(), *(_at(one, "reason") for one in grid)]
    if reasons := [text for text in reasons if isinstance(text, str) and text]:
        yield f"{len(reasons)} settings could not be measured; the first: {reasons[0]}"
    counted = [_at(one, "errors") for one in rows] + [_at(one, "row", "errors") for one in grid]
    if errors := sum(number for number in counted if _number(number)):
        yield f"{errors:,} requests of the benchmark got no usable answer"


def _at(results: Results, *names: str) -> Any:
    value: Any = results
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _number(value: Any) -> bool:
    """Whether it is a number other than 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value != 0


_RULES: dict[str, Callable[[Results], Iterator[str]]] = {
    "doctor": _doctor,
    "data_prep": _data_prep,
    "inference": _inference,
    "extraction": _extraction,
    "diagnostics": _diagnostics,
    "serving": _serving,
}
