"""A training with a memory budget: shards are read window by window, and nothing else of the training changes."""

import dataclasses
import json
from collections import Counter

import pytest
import torch

from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.state import StateError, checkpoints
from eagle3lab.draft.team import Team
from eagle3lab.features.live import LiveFeatures
from eagle3lab.features.store import FeatureStore, FeatureWriter
from tests.draft.jobs import RECIPE
from tests.tiny import HIDDEN, VOCAB

ROWS, EPOCHS = 36, 2
WHOLE = dataclasses.replace(RECIPE, epochs=EPOCHS, max_length=12, batch_tokens=40, accumulate=2)  # some rows are cut
WINDOW = 130  # tokens as they are trained, pieces of cut rows included


class Watched(FeatureStore):
    """A store that notes which row is read from which shard."""

    def row(self, row_id):
        self.read.append((row_id, self.index(row_id)["shard"]))
        return super().row(row_id)


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Twelve shards of about 45 tokens."""
    folder = tmp_path_factory.mktemp("sharded") / "features"
    writer = FeatureWriter(folder, {"corpus": "abc"}, [2, 4, 5], HIDDEN, shard_tokens=40)
    generator = torch.Generator().manual_seed(3)
    for i in range(ROWS):
        n = 8 + (5 * i) % 12
        ids = torch.randint(0, VOCAB, (n,), generator=generator).tolist()
        aux, last = torch.randn(n, 3, HIDDEN, generator=generator), torch.randn(n, HIDDEN, generator=generator)
        writer.add(f"r{i}", ids, [[3, n]], aux, last)
    writer.close()
    return folder


@pytest.fixture
def alone(job, features, tmp_path):
    quiet = {"heldout_rows": 0, "evaluate_every": None}
    return dataclasses.replace(job, features=features, folder=tmp_path / "state", recipe=WHOLE, **quiet)


def reads_of(one):
    """(row, shard) in the order of reading, one list an epoch; the rows; and what the training told last."""
    source = Watched(one.features)
    source.read = []
    trainer, rows = one.trainer(source=source), one.rows(source)
    source.read.clear()
    last = list(one.run(trainer))[-1]
    count = len(rows.lengths)
    assert len(source.read) == EPOCHS * count
    return [source.read[:count], source.read[count:]], rows, last


def tokens_at_once(reads, rows, shard_tokens):
    """The most tokens of shards that are in use at one time: from a shard's first read to its last."""
    order = [shard for _, shard in reads]
    ends = {shard: (order.index(shard), len(order) - 1 - order[::-1].index(shard)) for shard in set(order)}
    return max(
        sum(shard_tokens[shard] for shard, (first, last) in ends.items() if first <= at <= last)
        for at in range(len(order))
    )


def test_shards_are_read_window_after_window_and_every_row_once_an_epoch(alone, tmp_path):
    told = {}
    for name, window in (("whole", None), ("windows", WINDOW)):
        recipe = dataclasses.replace(WHOLE, window_tokens=window)
        epochs, rows, last = reads_of(dataclasses.replace(alone, recipe=recipe, folder=tmp_path / name))
        assert rows.counts["cut"] > 5 and rows.counts["windows"] > 10
        store, shard_tokens, pieces = FeatureStore(alone.features), Counter(), Counter(map(rows.row_of, rows.lengths))
        for piece, n in rows.lengths.items():
            shard_tokens[store.index(rows.row_of(piece))["shard"]] += n
        assert len(shard_tokens) >= 8
        assert all(Counter(row_id for row_id, _ in reads) == pieces for reads in epochs)
        told[name] = max(tokens_at_once(reads, rows, shard_tokens) for reads in epochs), last["tokens_seen"]
        # shards in another order, and rows of one window in another order, in each epoch
        assert [shard for _, shard in epochs[0]] != [shard for _, shard in epochs[1]]
    assert told["windows"][0] <= WINDOW < 2 * WINDOW < told["whole"][0]
    assert told["windows"][1] == told["whole"][1]


def test_two_processes_share_the_plan_of_one(alone):
    one = dataclasses.replace(alone, recipe=dataclasses.replace(WHOLE, window_tokens=WINDOW))
    plan = one.trainer().plan
    teams = [Team(rank, 2) for rank in range(2)]
    assert [one.trainer(team).plan for team in teams] == [plan, plan]
    for step in plan:
        assert sorted(batch for team in teams for batch in team.share(step)) == sorted(step)


def test_windows_need_shards(alone, features):
    store = FeatureStore(features)
    kept = ("id", "loss_spans", "split", "set")
    given = [
        {"input_ids": row.input_ids_T.tolist(), **{name: store.index(row.id)[name] for name in kept}}
        for row in store.rows()
    ]

    class States:
        def __init__(self, id, n):
            self.id, self.aux_TAH, self.last_TH = id, torch.randn(n, 3, HIDDEN), torch.randn(n, HIDDEN)

    live = LiveFeatures(given, lambda pairs: [States(i, len(ids)) for i, ids in pairs], [2, 4, 5], HIDDEN)
    recipe = dataclasses.replace(WHOLE, window_tokens=WINDOW)
    with pytest.raises(ValueError, match=f"window_tokens={WINDOW}, but these rows lie in no shards .*=None, or"):
        dataclasses.replace(alone, recipe=recipe).trainer(source=live)
    assert alone.trainer(source=live).total_steps == alone.trainer().total_steps


def test_a_training_from_before_the_windows_goes_on_and_another_window_does_not(alone):
    list(alone.run(alone.trainer()))
    identity = json.loads((checkpoints(alone.folder)[-1] / "state.json").read_text())["identity"]
    assert "window_tokens" not in identity["recipe"]  # as checkpoints had it that were written before
    assert alone.trainer().step == alone.trainer().total_steps
    with pytest.raises(StateError, match=f"recipe.window_tokens: .* '\\(nothing\\)', this training {WINDOW}"):
        dataclasses.replace(alone, recipe=dataclasses.replace(WHOLE, window_tokens=WINDOW)).trainer()
    assert Recipe(**Recipe(window_tokens=5).to_dict()) == Recipe(window_tokens=5)
    with pytest.raises(ValueError, match="window_tokens = 0: must be at least 1"):
        Recipe(window_tokens=0)
