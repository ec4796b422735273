"""Faults are planted in a drafter that the embedded engine really serves; the first of the ranked causes is the fault.

The plants here are made by other means than the suspects': by other engines, edited weights, a streaming drafter.
"""

import copy
from dataclasses import replace

import pytest
import torch

from eagle3lab.analysis.heldout import capture_answers
from eagle3lab.analysis.parity import ParityError, compare, served_verifications
from eagle3lab.analysis.suspects import REMEDIES, Suspect, suspects
from eagle3lab.draft.model import RMSNorm
from eagle3lab.engines.base import Request, SpecCompletion
from eagle3lab.engines.embedded import EmbeddedEngine
from tests.analysis.overfit import KNOWN_W, STEPS
from tests.tiny import VOCAB

W = len(KNOWN_W)


def served(overfit, draft, engine=None, requests=None):
    return list((engine or overfit.engine).speculate(draft, requests or overfit.requests, STEPS))


def other(overfit, shift):
    """An engine that hands out the layers `shift` later."""
    return EmbeddedEngine(overfit.folder, aux_layers=[k + shift for k in overfit.engine.aux_layers], end_ids=())


def edited(overfit, change):
    draft = copy.deepcopy(overfit.draft)
    with torch.no_grad():
        change(draft)
    return draft


def head_in_another_order(draft):
    draft.lm_head.weight.copy_(draft.lm_head.weight[torch.arange(W).roll(7)])


def layer_of_random_weights(draft):
    generator = torch.Generator().manual_seed(77)
    for name, weight in draft.named_parameters():
        if name.startswith("midlayer.") and weight.dim() == 2:
            weight.normal_(0, 0.02, generator=generator)


def norm_before_fc(draft):
    """As speculators has it, in the place of the norms on each state."""
    draft.fc_norm, draft.input_norm = None, RMSNorm(draft.fc.in_features, 1e-6)


class LateStates:
    """The drafter, fed the states of the token before the right one, as a server with that fault would stream them."""

    def __init__(self, draft, shape):
        self.draft, self.kept = draft, torch.zeros(1, *shape)

    def __getattr__(self, name):
        return getattr(self.draft, name)

    def new_cache(self, size):
        self.kept = torch.zeros_like(self.kept)
        return self.draft.new_cache(size)

    def fuse(self, aux_TAH):
        late_TAH = torch.cat([self.kept, aux_TAH[:-1]])
        self.kept = aux_TAH[-1:]
        return self.draft.fuse(late_TAH)


class DraftedTooFar:
    """The drafter in a server that rotates the slots of drafted tokens by one position more than those of true ones."""

    def __init__(self, draft):
        self.draft, self.true_TH = draft, None

    def __getattr__(self, name):
        return getattr(self.draft, name)

    def fuse(self, aux_TAH):
        self.true_TH = self.draft.fuse(aux_TAH)
        return self.true_TH

    def forward_cached(self, f_TH, next_ids_T, positions_T, cache):
        drafted = f_TH is not self.true_TH
        return self.draft.forward_cached(f_TH, next_ids_T, positions_T + drafted, cache)


EDITS = {
    "d2t absolute": ("vocabulary map", "target ids instead of offsets",
                     lambda d: setattr(d, "target_ids_W", (KNOWN_W + torch.arange(W)).clamp(max=VOCAB - 1))),
    "d2t missing": ("vocabulary map", "no d2t", lambda d: setattr(d, "target_ids_W", torch.arange(W))),
    "lm_head permuted": ("vocabulary map", "another order", head_in_another_order),
    "RoPE theta": ("rope", "theta 500,000", lambda d: setattr(d, "config", replace(d.config, rope_theta=5e5))),
    "hidden_norm missing": ("norm", "hidden_norm", lambda d: d.midlayer.hidden_norm.weight.fill_(1)),
    "final norm missing": ("norm", "norm not loaded", lambda d: d.norm.weight.fill_(1)),
    "norm_output flag": ("norm", "norm_output", lambda d: setattr(d, "config", replace(d.config, norm_output=False))),
    "fc_norm missing": ("norm", "fc_norm left out", lambda d: setattr(d, "fc_norm", None)),
    "layer dropped": ("tensors", "decoder layer", layer_of_random_weights),
}  # fmt: skip


@pytest.mark.parametrize("fault", EDITS)
def test_a_fault_of_the_drafter_is_ranked_first(overfit, fault):
    cause, name, change = EDITS[fault]
    completions = served(overfit, edited(overfit, change))
    found = compare(overfit.draft, overfit.rows, completions, STEPS, suspects(overfit.draft), excluded=["flag"])
    assert found.differing >= 10
    assert found.causes[0].cause == cause and name in found.causes[0].name
    assert found.causes[0].remedy == REMEDIES[cause]


@pytest.mark.parametrize(
    ("option", "change", "leave_out"),
    [
        ("norm_before_residual", lambda d: setattr(d, "config", replace(d.config, norm_before_residual=True)),
         lambda d: None),
        ("norm_before_fc", norm_before_fc, lambda d: setattr(d, "fc_norm", None)),
    ],
)  # fmt: skip
def test_an_option_that_the_server_leaves_out_is_ranked_first(overfit, option, change, leave_out):
    right, completions = edited(overfit, change), served(overfit, edited(overfit, leave_out))
    found = compare(right, overfit.rows, completions, STEPS, suspects(right))
    first = found.causes[0]
    assert found.differing > 0 and (first.cause, first.name, first.agreement) == ("norm", f"{option} left out", 1.0)


def test_the_wrong_flag_is_ranked_first(overfit):
    right = served(overfit, overfit.draft)
    never = [replace(one, accepted=[0] * (len(one.output_ids) - 1)) for one in right]
    found = compare(overfit.draft, overfit.rows, never, STEPS, suspects(overfit.draft))
    assert (found.causes[0].cause, found.causes[0].agreement) == ("flag", 1.0)


@pytest.mark.parametrize(("shift", "name"), [(1, "one layer later"), (-1, "one layer earlier")])
def test_layers_off_by_one_are_ranked_first(overfit, shift, name):
    rows = {
        f"layers: {words}": list(capture_answers(other(overfit, by), overfit.answers, 512))
        for by, words in ((1, "one layer later"), (-1, "one layer earlier"))
    }
    completions = served(overfit, overfit.draft, other(overfit, shift))
    found = compare(overfit.draft, overfit.rows, completions, STEPS, suspects(overfit.draft, rows))
    assert (found.causes[0].cause, found.causes[0].name, found.causes[0].agreement) == ("layers", name, 1.0)


def test_states_one_token_late_are_ranked_first(overfit):
    late = LateStates(overfit.draft, overfit.rows[0].aux_TAH.shape[1:])
    found = compare(overfit.draft, overfit.rows, served(overfit, late), STEPS, suspects(overfit.draft))
    assert (found.causes[0].cause, found.causes[0].name) == ("position", "states one token late")


def test_drafted_tokens_one_position_too_far_are_ranked_first(overfit):
    completions = served(overfit, DraftedTooFar(overfit.draft))
    found = compare(overfit.draft, overfit.rows, completions, STEPS, suspects(overfit.draft))
    assert found.differing > 0
    first = found.causes[0]
    assert (first.cause, first.agreement) == ("position", 1.0) and "one RoPE position too far" in first.name


def test_the_targets_own_head_is_ranked_first(overfit):
    head_VH = overfit.engine.lm_head_VH.detach()
    draft = edited(overfit, lambda d: d.lm_head.weight.copy_(head_VH[KNOWN_W]))
    candidates = suspects(overfit.draft, head_VH=head_VH)
    found = compare(overfit.draft, overfit.rows, served(overfit, draft), STEPS, candidates, excluded=["flag"])
    assert found.causes[0].cause == "head"


def test_other_prompts_are_the_template(overfit):
    longer = [Request(r.id, [2, *r.input_ids], r.max_tokens) for r in overfit.requests]
    found = compare(overfit.draft, overfit.rows, served(overfit, overfit.draft, requests=longer), STEPS)
    assert found.causes[0].cause == "template" and "8 answers were served to other prompt tokens" in found.causes[0].why
    assert not found.equal and found.verifications == 0


def noise_like(weight, generator):
    """Normal, of the weight's own standard deviation."""
    return torch.randn(weight.shape, generator=generator) * weight.std()


def test_rounding_is_ranked_first_when_little_differs(overfit):
    """Noise in the head, until rounding decides a token: a drafter that learned by heart is too sure of all of them."""
    for share in (0.0, 0.1, 0.2, 0.3, 0.5):
        noise = torch.Generator().manual_seed(0)
        draft = edited(overfit, lambda d, s=share, g=noise: d.lm_head.weight.add_(noise_like(d.lm_head.weight, g) * s))
        completions = served(overfit, copy.deepcopy(draft).to(torch.bfloat16).to(torch.float32))
        found = compare(draft, overfit.rows, completions, STEPS, suspects(draft))
        if found.differing:
            break
    assert found.agreement > 0.9
    assert found.causes[0].cause == "precision"


def test_what_is_right_has_no_cause(overfit):
    before = {name: weight.clone() for name, weight in overfit.draft.named_parameters()}
    found = compare(overfit.draft, overfit.rows, served(overfit, overfit.draft), STEPS, suspects(overfit.draft))
    assert found.equal and found.causes == () and found.first == ()
    assert (found.same_text, found.agreement) == (len(overfit.rows), 1.0)
    assert str(found) == f"0 of {found.verifications} verifications differ"
    assert all(torch.equal(weight, before[name]) for name, weight in overfit.draft.named_parameters())


def test_every_plant_is_taken_back(overfit):
    draft, rows = copy.deepcopy(overfit.draft), overfit.rows
    before = draft.config, draft.target_ids_W.clone(), {n: w.clone() for n, w in draft.named_parameters()}
    right_qkv = draft.qkv
    candidates = suspects(draft, {"layers: x": rows}, overfit.engine.lm_head_VH.detach())
    for suspect in candidates:
        with pytest.raises(RuntimeError, match="stop"), suspect.plant(draft):
            raise RuntimeError("stop")
    assert (draft.config, draft.qkv) == (before[0], right_qkv) and torch.equal(draft.target_ids_W, before[1])
    assert all(torch.equal(weight, before[2][name]) for name, weight in draft.named_parameters())
    assert {suspect.cause for suspect in candidates} == set(REMEDIES) - {"template", "target"}


def test_what_cannot_be_told_apart_is_named_together(overfit):
    """Nothing accepted looks the same whatever the reason: no order of names may pretend to know which."""
    never = [replace(one, accepted=[0] * (len(one.output_ids) - 1)) for one in served(overfit, overfit.draft)]
    alike = [Suspect(cause, name, never=True) for cause, name in (("norm", "a"), ("tensors", "b"), ("norm", "c"))]
    found = compare(overfit.draft, overfit.rows, never, STEPS, [*alike, Suspect("head", "as it is")])
    assert [cause.name for cause in found.causes] == ["a or c", "b", "as it is"]
    assert found.causes[0].why.endswith("; tensors would be accepted alike")
    assert "alike" not in found.causes[2].why and found.causes[2].agreement < 1


def test_facts_come_before_guesses_and_excluded_causes_not_at_all(overfit):
    never = [replace(one, accepted=[0] * (len(one.output_ids) - 1)) for one in served(overfit, overfit.draft)]
    facts = {"tensors": "the server would drop fc.weight"}
    candidates = suspects(overfit.draft)
    found = compare(overfit.draft, overfit.rows, never, STEPS, candidates, facts, excluded=["flag"])
    assert (found.causes[0].cause, found.causes[0].agreement) == ("tensors", None)
    assert found.causes[0].why == facts["tensors"]
    assert all(cause.cause != "flag" for cause in found.causes)


# ---- by hand -----------------------------------------------------------------------------------------------


def hand_row(overfit, ids):
    return replace(overfit.rows[0], id="h", n_prompt=2, input_ids_T=torch.tensor(ids))


def completion(output, accepted, prompt=(5, 6)):
    return SpecCompletion("h", list(prompt), output, "length", 0.0, accepted)


def test_served_slots_by_hand(overfit):
    row = hand_row(overfit, [5, 6, 10, 11, 12, 13, 14, 15])
    found = served_verifications([row], [completion([10, 11, 12, 13, 14, 15], [2, 0, 0])], 3)
    assert found.slot_C.tolist() == [1, 4, 5] and found.accepted_C.tolist() == [2, 0, 0]
    assert found.room_C.tolist() == [3, 1, 0]
    assert (found.same_text, found.other_text) == (1, ())


def test_a_text_that_goes_another_way_is_compared_up_to_there(overfit):
    row = hand_row(overfit, [5, 6, 10, 11, 12, 13, 14, 15])
    # x6 differs: the second verification (x6, x7) is left out
    found = served_verifications([row], [completion([10, 11, 12, 13, 99, 15], [2, 1])], 3)
    assert found.slot_C.tolist() == [1] and found.other_text == ("h",)
    shorter = served_verifications([row], [completion([10, 11, 12, 13], [2])], 3)
    assert shorter.slot_C.tolist() == [1] and shorter.other_text == ("h",)


def test_the_first_difference_is_shown(overfit):
    completions = served(overfit, overfit.draft)
    changed = next(one for one in completions if len(one.accepted) > 2 and one.accepted[1] > 0)
    wrong = replace(changed, accepted=list(changed.accepted))
    # one draft fewer accepted in the second verification, one verification more
    wrong.accepted[1:2] = [changed.accepted[1] - 1, 0]
    found = compare(overfit.draft, overfit.rows, [wrong], STEPS)
    (first,) = found.first
    assert (first.id, first.verification) == (changed.id, 1)
    assert (first.simulated, first.served) == (changed.accepted[1], changed.accepted[1] - 1)
    assert first.slot == len(changed.prompt_ids) - 1 + changed.accepted[0] + 1


def test_what_cannot_be_compared_is_refused(overfit):
    row = hand_row(overfit, [5, 6, 10, 11])
    with pytest.raises(ParityError, match="did not tell"):
        served_verifications([row], [completion([10, 11], None)], 3)
    with pytest.raises(KeyError):
        served_verifications([], [completion([10, 11], [0])], 3)
    with pytest.raises(ValueError, match="cause 'weather' is none of flag"):
        Suspect("weather", "rain")
