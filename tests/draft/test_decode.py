"""Simulated and served accept length are the same thing: cycle by cycle, on a trained drafter and real engines."""

from types import SimpleNamespace

import pytest
import torch

from eagle3lab.analysis.accept import PromptCycles
from eagle3lab.draft import decode
from eagle3lab.draft.config import DraftConfig
from eagle3lab.draft.decode import answer_hits, answers, simulated_commits
from eagle3lab.draft.model import Eagle3Draft
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.train import Trainer
from eagle3lab.engines.base import Request
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.features.slots import spans_to_mask, teacher_slots
from tests.draft.samples import make_draft, make_row
from tests.tiny import VOCAB, save_tiny_target


def feature_rows(engine, completions):
    """Feature rows of greedy answers, in memory, at the engine's precision."""
    texts = {c.id: c.prompt_ids + c.output_ids for c in completions}
    prompts = {c.id: len(c.prompt_ids) for c in completions}
    rows = {}
    for features in engine.capture(texts.items(), batch_tokens=512):
        mask_T = spans_to_mask([[prompts[features.id], len(texts[features.id])]], len(texts[features.id]))
        slots = teacher_slots(mask_T)
        rows[features.id] = SimpleNamespace(
            id=features.id,
            input_ids_T=torch.tensor(texts[features.id]),
            loss_mask_T=mask_T,
            aux_TAH=features.aux_TAH,
            last_slots=slots,
            last_MH=features.last_TH[slots],
        )
    return rows


@pytest.fixture(scope="module", params=["llama", "qwen3", "deepseek_v3"])
def trained(request, tmp_path_factory):
    """A target, its greedy answers, their features, and a drafter overfit on half of them."""
    folder = tmp_path_factory.mktemp(request.param)
    engine = EmbeddedEngine(save_tiny_target(folder, request.param))
    generator = torch.Generator().manual_seed(1)
    requests = [
        Request(f"p{i}", torch.randint(2, VOCAB, (3 + i % 5,), generator=generator).tolist(), max_tokens=24)
        for i in range(10)
    ]
    completions = list(engine.generate(requests, batch_size=4))
    rows = feature_rows(engine, completions)
    config = DraftConfig.for_target(engine.config, tuple(engine.aux_layers), VOCAB - 4)
    draft = Eagle3Draft(config, engine.embed_VH.detach(), torch.arange(4, VOCAB))
    recipe = Recipe(ttt_steps=3, epochs=60, batch_tokens=200, compute_dtype="float32", lr=1e-2, head_lr=1e-2)
    known = {f"p{i}": rows[f"p{i}"] for i in range(5) if len(rows[f"p{i}"].last_slots) > 2}
    lengths = {i: row.input_ids_T.numel() for i, row in known.items()}
    list(Trainer(draft, lengths, known.__getitem__, engine.lm_head_VH.detach(), recipe, folder / "state").run())
    return engine, requests, rows, draft


@pytest.mark.parametrize("num_steps", [1, 3, 5])
def test_simulated_equals_served(trained, num_steps):
    engine, requests, rows, draft = trained
    served = {c.id: c for c in engine.speculate(draft, requests, num_steps)}
    prompts = {r.id: len(r.input_ids) for r in requests}
    accepted_somewhere = 0
    for row, hits_TK in answer_hits(draft, rows.values(), num_steps):
        completion = served[row.id]
        assert completion.prompt_ids + completion.output_ids == row.input_ids_T.tolist()  # lossless
        if len(completion.output_ids) < 2:
            assert completion.accepted == []
            continue
        simulated = PromptCycles.simulated(row.id, hits_TK.numpy(), prompts[row.id], row.input_ids_T.numel())
        assert list(simulated.accepted) == completion.accepted, row.id
        accepted_somewhere += sum(completion.accepted)
    assert accepted_somewhere > 10  # the comparison is about something
    accepted = [a for completion in served.values() for a in completion.accepted]
    assert simulated_commits(draft, rows.values(), num_steps) == (sum(accepted) + len(accepted), len(accepted))


def test_hits_of_a_row_do_not_depend_on_its_neighbours(trained):
    _, _, rows, draft = trained
    together = {row.id: hits for row, hits in answer_hits(draft, rows.values(), 3, rows_at_once=10)}
    for row in rows.values():
        ((_, alone),) = answer_hits(draft, [row], 3)
        assert torch.equal(alone, together[row.id])


def test_rows_of_scattered_tokens_do_not_shift_their_neighbours():
    """An answer of one token has nothing to predict: its row is not in the batch, the others keep their place."""
    draft = make_draft()
    spans = [[(2, 3), (5, 6)], [(3, 30)], [(9, 10), (12, 13)], [(2, 12), (15, 28)]]
    rows = [make_row(seed, 30, spans[seed % 4]) for seed in range(24)]
    together, hits = answer_hits(draft, rows, 2), 0
    for row, (same, hits_TK) in zip(rows, together, strict=True):
        ((_, alone),) = answer_hits(draft, [row], 2)
        assert same is row and torch.equal(hits_TK, alone)
        hits += int(hits_TK.sum())
    assert hits > 5


def test_answers_are_the_runs_of_generated_tokens():
    mask = torch.tensor([0, 1, 1, 0, 0, 1, 0, 1], dtype=torch.bool)
    assert answers(mask) == [(1, 3), (5, 6), (7, 8)]
    assert answers(torch.zeros(4, dtype=torch.bool)) == []


def test_commits_of_several_answers_in_a_row_by_hand(monkeypatch):
    row = make_row(1, 12, [(2, 6), (8, 12)])
    hits_TK = torch.zeros(12, 2, dtype=torch.bool)
    hits_TK[1] = torch.tensor([True, False])  # x3 right, x4 is the bonus; then slot 3 predicts x5: wrong
    hits_TK[7] = torch.tensor([True, True])  # x9 and x10 right, x11 is the bonus
    monkeypatch.setattr(decode, "answer_hits", lambda draft, rows, num_steps: [(row, hits_TK)])
    assert simulated_commits(None, [row], 2) == (3 + 3, 2 + 1)


def test_too_short_answers_have_no_hits(trained):
    _, _, rows, draft = trained
    row = next(iter(rows.values()))
    short = SimpleNamespace(**{**vars(row), "loss_mask_T": torch.zeros_like(row.loss_mask_T)})
    ((_, hits_TK),) = answer_hits(draft, [short], 3)
    assert not hits_TK.any()
