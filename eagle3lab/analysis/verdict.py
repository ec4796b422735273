"""Bug or too little data? A verdict in plain words, from evidence that is gathered cheaply, and what to do next.

The order of the questions matters: each is only worth asking when the ones before are answered.
    1. Does the server do what the simulation does? If not, it is a bug in serving, whatever the training did.
    2. Can the drafter learn a few answers by heart? If not, it is a bug in training or in the features; if nearly, it
       wants more passes first.
    3. Does it beat a drafter that has learned nothing? If not, the held-out data does not fit the training.
    4. Is it much better on what it was trained on? Then there is too little data.
    5. Does more data still help? Then more data is the way, else it is not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "bug in serving", "bug in training", "bug in data", "too little data", "too little training", "at its limit",
    "enough", "open",
]  # fmt: skip

OVERFIT_SHARE = 0.9  # of the maximum num_steps + 1, on answers learned by heart
UNFINISHED_SHARE = 0.7  # from here to OVERFIT_SHARE it learns, and may only want more passes; below it is a bug
CONTROL_MARGIN = 0.1  # a drafter this near to the random one has learned nothing
GAP_SHARE = 0.3  # of the accepted drafts on trained text, lost on held-out text
ROUNDING = 0.03  # share of verifications that may differ where precisions differ
CONTROL_SHARE = 0.67  # of the accepted drafts, what a control that holds no information must stay below
CURVE = "the scaling curve says how many answers the goal needs"
WORTH = 0.1  # accept length that ten times the data should bring, to be worth it


@dataclass(frozen=True)
class Evidence:
    """What was measured; None: it was not. Accept lengths are of chains of `num_steps`.

    heldout: of the drafter on held-out answers, with its interval. random: of a random drafter on the same. trained: of
    the drafter on answers it was trained on. overfit: of a drafter trained on a few answers until nothing improves, on
    these answers; overfit_most: the best possible there, with this vocabulary and these ends; overfit_passes: the most
    passes over them that were tried. verifications, differing: simulated against served; cause: the likeliest cause of
    what differs.
    slope, slope_interval: accept length gained by ten times the data; slope_of: of which chain and answers, which need
    not be these; slope_why: why that is not known. wanted: accept length that would be enough.
    """

    num_steps: int
    heldout: float | None = None
    heldout_interval: tuple[float, float] | None = None
    random: float | None = None
    trained: float | None = None
    overfit: float | None = None
    overfit_most: float | None = None
    overfit_passes: int | None = None
    verifications: int | None = None
    differing: int | None = None
    cause: str = ""
    slope: float | None = None
    slope_interval: tuple[float, float] | None = None
    slope_of: str = ""
    slope_why: str = ""
    wanted: float | None = None

    def __post_init__(self):
        most = self.num_steps + 1
        for name in ("heldout", "random", "trained", "overfit", "overfit_most"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"{name}={value}: an accept length of a chain of {self.num_steps} lies in 1..{most}")


def slope_fields(curve: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of `Evidence` that a curve.json of 07_scaling gives (None: there is none): slope and interval, or why
    there is no slope."""
    if curve is None:
        return {"slope_why": "run 07_scaling, and name its run in scaling_run"}
    if "slope" not in curve:
        return {"slope_why": "that run of 07_scaling tells no slope: run it again"}
    if curve["vary"] not in ("rows", "tokens"):
        return {"slope_why": f"that run of 07_scaling varies {curve['vary']}, not the data"}
    if len({point["amount"] for point in curve["points"]}) < 3:
        return {"slope_why": "that run of 07_scaling has fewer than three amounts of data"}
    slope, low, high = curve["slope"]
    return {"slope": slope, "slope_interval": (low, high), "slope_of": curve.get("setting", "")}


@dataclass(frozen=True)
class Line:
    """One piece of evidence: the question, what was found, and what it says (good, bad, unsure, or that it is
    missing)."""

    question: str
    found: str
    says: Literal["good", "bad", "unsure", "missing"]


@dataclass(frozen=True)
class Judgement:
    """The verdict, why, and the next step."""

    kind: Kind
    words: str
    next_step: str
    lines: tuple[Line, ...] = field(default=())

    def __str__(self):
        return f"{self.kind}: {self.words} Next: {self.next_step}"


def judge(e: Evidence) -> Judgement:
    """The verdict on all evidence that there is."""
    lines = (_parity(e), _overfit(e), _control(e), _gap(e), _slope(e))
    parity, overfit, control, gap, slope = lines
    bad = {line.question for line in lines if line.says == "bad"}
    if parity.question in bad:
        cause = f", most likely {e.cause}" if e.cause else ""
        words = f"the server accepts other drafts than the same drafter does offline{cause}."
        return Judgement("bug in serving", words, "mend the first of the ranked causes, and compare again", lines)
    if overfit.question in bad:
        words = "it cannot learn a few answers by heart, so more data cannot help."
        step = "check masks, slots and layers: features against the target, then loss on one batch"
        return Judgement("bug in training", words, step, lines)
    if overfit.says == "unsure":
        passes = f"in {e.overfit_passes} passes" if e.overfit_passes else "in its passes"
        words = f"a few answers were not learned by heart {passes} ({overfit.found}; {OVERFIT_SHARE:.0%} proves it)."
        return Judgement("open", words, "raise heart_passes before you suspect a bug", lines)
    if control.question in bad:
        if overfit.says == "good":
            words = "training works, but on held-out answers the drafter is no better than a random one."
            step = "compare template, target and vocabulary map of the training data with the held-out answers"
            return Judgement("bug in data", words, step, lines)
        step = "train on a few answers until nothing improves (a minute): it must reach 90 % of the maximum"
        return Judgement("open", "it has learned nothing that helps, and training itself is not proven.", step, lines)
    if e.heldout is None:
        return Judgement("open", "no accept length on held-out answers.", "simulate it on held-out answers", lines)
    if e.wanted is not None and e.heldout >= e.wanted:
        return Judgement("enough", f"it reaches the {e.wanted:.2f} that is wanted.", "serve it", lines)
    return _data_or_not(e, lines, gap, slope)


def _data_or_not(e: Evidence, lines, gap: Line, slope: Line) -> Judgement:
    unproven = [line.question for line in lines[:3] if line.says != "good"]
    clear = f"no bug is known of (not asked: {'; '.join(unproven)})" if unproven else "no bug was found"
    if slope.says == "bad":
        step = "look at the waterfall: a larger draft vocabulary, more TTT steps, or a larger drafter"
        return Judgement("at its limit", f"{clear}, and ten times the data would hardly help.", step, lines)
    if gap.says == "bad":
        worth = f"; ten times the data are worth {e.slope:+.2f}" if slope.says == "good" else ""
        words = f"{clear}; it accepts {e.trained:.2f} on what it was trained on and {e.heldout:.2f} on new text{worth}."
        step = "train on more answers of the target, of the kinds served"
        return Judgement("too little data", words, f"{step}{': ' + CURVE if worth else ''}", lines)
    if slope.says == "good":
        words = f"{clear}; ten times the data are worth {e.slope:+.2f} accept length."
        return Judgement("too little data", words, CURVE, lines)
    if gap.says == "good":
        words = f"{clear}; trained and new text are accepted alike, so it has not yet learned its own data."
        return Judgement("too little training", words, "train longer, or at a higher learning rate", lines)
    step = "measure the accept length on trained rows, and on drafters of two amounts of data"
    return Judgement("open", f"{clear}; whether data or training is short was not measured.", step, lines)


def _parity(e: Evidence) -> Line:
    question = "does the server do what the simulation does"
    if not e.verifications or e.differing is None:
        return Line(question, "not compared", "missing")
    found = f"{e.differing:,} of {e.verifications:,} verifications differ"
    rounding = e.cause.startswith("precision") and e.differing <= ROUNDING * e.verifications
    return Line(question, found, "good" if e.differing == 0 or rounding else "bad")


def _overfit(e: Evidence) -> Line:
    question = "can it learn a few answers by heart"
    if e.overfit is None:
        return Line(question, "not tried", "missing")
    most = e.overfit_most or e.num_steps + 1
    found = f"accept length {e.overfit:.2f}, {e.overfit / most:.0%} of the maximum {most:.2f}"
    says = "bad" if e.overfit < UNFINISHED_SHARE * most else "unsure" if e.overfit < OVERFIT_SHARE * most else "good"
    return Line(question, found, says)


def _control(e: Evidence) -> Line:
    question = "does it beat a random drafter"
    if e.heldout is None or e.random is None:
        return Line(question, "not measured", "missing")
    low = e.heldout_interval[0] if e.heldout_interval else e.heldout
    found = f"{e.heldout:.2f} against {e.random:.2f}"
    return Line(question, found, "good" if low > e.random and e.heldout >= e.random + CONTROL_MARGIN else "bad")


def _gap(e: Evidence) -> Line:
    question = "is new text accepted like trained text"
    if e.heldout is None or e.trained is None:
        return Line(question, "not measured", "missing")
    found = f"{e.trained:.2f} on trained answers, {e.heldout:.2f} on new ones"
    lost = e.trained - e.heldout > GAP_SHARE * (e.trained - 1)
    return Line(question, found, "bad" if lost else "good")


def _slope(e: Evidence) -> Line:
    question = "does more data help"
    if e.slope is None:
        return Line(question, f"not measured: {e.slope_why}" if e.slope_why else "not measured", "missing")
    interval = f" [{e.slope_interval[0]:+.2f}, {e.slope_interval[1]:+.2f}]" if e.slope_interval else ""
    low, high = e.slope_interval or (e.slope, e.slope)
    found = f"{e.slope:+.2f}{interval} accept length by ten times the data{f' ({e.slope_of})' if e.slope_of else ''}"
    if low <= 0 and high >= WORTH:
        return Line(question, f"{found}: too uncertain to say", "missing")
    return Line(question, found, "good" if low > 0 and high >= WORTH else "bad")


@dataclass(frozen=True)
class Checked:
    """One thing that must hold, what was found, and whether it does."""

    check: str
    found: str
    ok: bool


def checks(
    e: Evidence,
    controls: Mapping[str, float],
    reordered: float,
    shuffled: float | None,
    same_text: int,
    answers: int,
) -> list[Checked]:
    """What must hold whatever the drafter is worth; questions that were not asked are left out.

    controls: accept lengths of drafters or states that hold no information. reordered: with the aux layers in each
    other's places; they hold it all the same, and where layers are alike and have norms (`fc_norm`) a drafter finds
    much of it, so that it must only do better with the right order. shuffled: accept length of answers learned
    by heart from a shuffled teacher. same_text: of `answers` served, how many are plain greedy decoding's.
    """
    worst, low = max(controls.values()), e.heldout_interval[0] if e.heldout_interval else e.heldout
    found = [
        Checked("simulated = served, cycle by cycle", _parity(e).found, e.differing == 0),
        Checked("speculation is lossless", f"{same_text} of {answers} answers equal", same_text == answers),
        Checked("controls fail", _named(controls), worst - 1 < CONTROL_SHARE * (e.heldout - 1)),
        Checked("the drafter beats them", f"{e.heldout:.2f}, at least {low:.2f}", low > worst),
        Checked("the order of the aux layers matters", f"in another one {reordered:.2f}", low > reordered),
    ]
    if e.overfit is not None:
        found.append(Checked("it learns a few answers by heart", _overfit(e).found, _overfit(e).says == "good"))
        if shuffled is not None:
            fails = shuffled - 1 < CONTROL_SHARE * (e.overfit - 1)
            found.append(Checked("it does not from a shuffled teacher", f"{shuffled:.2f}", fails))
    return found


def _named(lengths: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {length:.2f}" for name, length in lengths.items())
