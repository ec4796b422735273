"""The doctor's whole round: every check passes on a good world, and sees the fault that is planted for it."""

from collections import Counter

import pytest

from eagle3lab.analysis import doctor
from eagle3lab.analysis.doctor import CATALOGUE, run_doctor
from eagle3lab.analysis.doctor.catalogue import PARITY
from eagle3lab.analysis.doctor.examine import AREAS
from eagle3lab.analysis.suspects import REMEDIES
from tests.analysis.doctor.faults import CASES, ONLY_WHEN_BROKEN, PLANTS
from tests.analysis.doctor.plants import absolute, cut_shard, renamed
from tests.analysis.doctor.world import CONTEXT
from tests.draft.samples import pickle_tensors

# The catalogue of failures, as the field knows it.
FIELD = """
flag EAGLE instead of EAGLE3 (tau exactly 1.00)
aux layer off by one
draft weights named for another engine, silently dropped
d2t stored as absolute ids instead of offsets, or missing
lm_head rows in another order than d2t
draft_vocab_size larger than distinct ids
random embedding exported, or draft lm_head overwritten by the target's
RoPE theta/scaling/max positions different from training
norm flags the engine does not know
chat template or system prompt different between data and serving
loss mask all zero or all one
reasoning text blanked by the template (Kimi)
trained on answers of another model
answers cut by max_tokens counted as complete
stale vocabulary map or stale features reused
NaN/Inf in hidden states
padded rows taken for real
target quantised or rotated differently between extraction and serving
padding side
position ids off by one
trained context shorter than served context
topk > 1 with few draft tokens (worse than a chain)
more draft tokens than break-even allows
concurrency so high that verification is compute-bound
"""


def verdicts(rows):
    worst = {"ok": 0, "not checked": 1, "warning": 2, "fault": 3}
    found: dict[str, str] = {}
    for row in rows:
        if row.check not in found or worst[row.verdict] > worst[found[row.check]]:
            found[row.check] = row.verdict
    return found


def test_every_check_passes_on_the_good_world(passed):
    assert [(row.check, row.found) for row in passed if row.verdict != "ok"] == []
    assert set(verdicts(passed)) == set(PLANTS) - ONLY_WHEN_BROKEN
    assert doctor.exit_code(passed) == 0


def test_a_drafter_in_a_pickle_of_tensors_is_looked_at_like_any_other(world, passed):
    served = world.copy(world.root.parent / "served")  # the same drafter in safetensors
    pickle_tensors(world.draft)
    server = world.info(speculative_draft_model_path=str(served.draft))
    rows = run_doctor(world.subject(recapture=True, server=server))
    assert [(row.check, row.verdict) for row in rows] == [(row.check, row.verdict) for row in passed]


def not_finite(tensors):
    return tensors | {"fc.weight": tensors["fc.weight"] * float("nan")}


@pytest.mark.parametrize("plant", [absolute, not_finite, renamed], ids=lambda plant: plant.__name__)
def test_its_faults_are_seen_too(world, plant):
    world.edit_tensors(plant)
    expected = {row.check for row in run_doctor(world.subject()) if row.verdict == "fault"}
    pickle_tensors(world.draft)
    assert expected == {row.check for row in run_doctor(world.subject()) if row.verdict == "fault"} != set()


@pytest.mark.parametrize(("name", "number"), CASES, ids=[f"{name} {number}" for name, number in CASES])
def test_the_planted_fault_is_seen(world, name, number):
    changes = PLANTS[name][number](world)
    given = changes if isinstance(changes, dict) else {}
    rows = run_doctor(world.subject(**{"recapture": name == "features recaptured"} | given))
    found = verdicts(rows)
    assert found.get(name) in ("warning", "fault"), [str(row) for row in rows if row.check == name]
    assert all(row.remedy and row.command for row in rows if row.verdict != "ok")


def test_every_check_has_a_planted_fault(passed):
    counts = Counter(name for name, _ in CASES)
    unplanted = set(verdicts(passed)) - set(counts)
    assert unplanted == {"template as served"}  # planted in the next test
    # checks that pass on the good world, checks with a plant, plants; rows of the machine: test_machine.py
    assert len(passed) >= 55 and len({*counts, *unplanted}) >= 60 and len(CASES) + len(unplanted) >= 102


def test_a_tokenizer_that_adds_specials_of_its_own_is_seen(tokenizer):
    from eagle3lab.analysis.doctor.template import check_renders_as_served

    assert check_renders_as_served(tokenizer).verdict == "ok"

    class Adds:
        """The tokenizer, but its chat template's ids begin with one more."""

        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def __call__(self, *arguments, **options):
            return tokenizer(*arguments, **options)

        def apply_chat_template(self, messages, tokenize=True, **options):
            found = tokenizer.apply_chat_template(messages, tokenize=tokenize, **options)
            return [0, *found] if tokenize else found

    row = check_renders_as_served(Adds())
    assert row.verdict == "fault" and "other ids" in row.found


@pytest.mark.parametrize("architecture", ["Eagle3DeepseekV2ForCausalLM", "Eagle3NewForCausalLM"])
def test_tensors_of_a_network_that_is_not_known_are_not_called_right(world, architecture):
    world.edit_json("draft/config.json", architectures=[architecture])
    world.edit_tensors(renamed)
    rows = run_doctor(world.subject())
    for name in ("draft tensors", "draft in vLLM"):
        own = [row for row in rows if row.check == name]
        assert "not checked" in {row.verdict for row in own} and "ok" not in {row.verdict for row in own}
        assert any(f"tensors of {architecture}, whose names are not known here" in row.found for row in own)
    assert "tensors" not in doctor.causes_excluded(rows)


def test_states_that_cannot_be_captured_again_are_not_called_wrong(world):
    world.edit_json("target/config.json", hidden_size=48)
    (row,) = [row for row in run_doctor(world.subject(recapture=True)) if row.check == "features recaptured"]
    assert row.verdict == "not checked" and row.command.endswith("--recapture")


# ---- the catalogue -----------------------------------------------------------------------------------------


def test_the_catalogue_is_the_fields():
    assert [entry.failure for entry in CATALOGUE] == FIELD.strip().splitlines()


def test_the_template_is_looked_for_where_it_can_be_seen():
    """05 sends token ids, so what it compares is the same under any template of the server."""
    (entry,) = [entry for entry in CATALOGUE if entry.cause == "template"]
    assert "server template" in entry.checks and PARITY not in entry.checks
    assert "doctor --server" in entry.note and "05_diagnostics sends token ids" in entry.note


def test_every_failure_has_a_check_that_ran_and_was_planted(passed):
    ran, planted = set(verdicts(passed)), {name for name, _ in CASES} | {"template as served"}
    for entry in CATALOGUE:
        assert entry.checks or entry.note, entry.failure
        assert set(entry.checks) <= ran & planted, entry.failure
        assert not entry.cause or entry.cause in REMEDIES


def test_faults_become_facts_for_the_ranking(world, passed):
    world.edit_tensors(absolute)
    rows = run_doctor(world.subject(server=world.info(speculative_algorithm="EAGLE")))
    facts = doctor.causes_shown(rows)
    assert set(facts) == {"flag", "vocabulary map"}
    assert facts["vocabulary map"].startswith("draft d2t: d2t holds the target's ids themselves")
    assert doctor.causes_shown(passed) == {}
    assert doctor.causes_excluded(passed) == {"flag", "tensors"}


# ---- nothing given, nothing changed, the command --------------------------------------------------------------


def test_what_is_not_given_is_said_to_be_unchecked():
    rows = run_doctor(doctor.Subject())
    assert [row.check for row in rows] == list(AREAS)
    assert {row.verdict for row in rows} == {"not checked"} and all(row.remedy and row.command for row in rows)


@pytest.mark.parametrize("area", ["target", "prepared", "corpus", "features", "vocab_map", "draft", "benchmark"])
def test_an_artefact_alone_is_looked_at_without_the_others(good, area):
    rows = run_doctor(doctor.Subject(**{area: getattr(good, area)}))
    own = [row for row in rows if row.check not in AREAS]
    assert own and not doctor.faults(rows), [row for row in rows if row.verdict == "fault"]
    assert all(row.command for row in rows if row.verdict != "ok")


def test_the_doctor_changes_nothing(world):
    cut_shard(world)
    before = {path: path.read_bytes() for path in world.root.rglob("*") if path.is_file()}
    run_doctor(world.subject())
    assert {path: path.read_bytes() for path in world.root.rglob("*") if path.is_file()} == before


def test_the_trained_context_is_compared_with_the_one_that_is_served(good):
    longer = run_doctor(good.subject(spec=good.spec(context_length=4 * CONTEXT)))
    (row,) = [row for row in longer if row.check == "draft context" and "trained" in row.remedy]
    assert row.verdict == "warning"
    commands = {row.command for row in longer if "train on longer rows" in row.remedy}
    again = "python -m eagle3lab run PROFILE --from data_prep"
    assert commands == {f"{again} -p max_prompt_tokens NUMBER -p max_tokens NUMBER"}
