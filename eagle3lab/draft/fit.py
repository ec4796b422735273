"""Do features, target, vocabulary map and chosen rows fit together: asked before anything is trained.

What does not fit would end deep inside torch with an error that names nothing, or train something else without a word.

Shapes: T tokens, V target vocabulary, K TTT steps, N anchors.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from eagle3lab.draft.aux_layers import check_aux_layers
from eagle3lab.draft.batch import make_batch
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.rows import TrainingRows, heldout_rows
from eagle3lab.draft.start import read_sizes
from eagle3lab.draft.vocab import VocabError, VocabMap
from eagle3lab.features.layout import FeatureStoreError

LOOK = 200  # rows that are looked at for a token that the vocabulary map names
SHOWN = 3  # ids that a message names


def check_features(features: str | Path, source, target: str | Path) -> None:
    """FeatureStoreError for aux layers, sizes or a teacher's vocabulary that the target does not have.

    source: what is read of `features`; it may leave hidden_size and info (store.json) out, and is not asked then.
    """
    sizes = read_sizes(target)
    anew = f"extract the features of {target} anew, or name the target they are of"
    try:
        check_aux_layers(source.aux_layers, sizes.num_hidden_layers)
    except ValueError as error:
        raise FeatureStoreError(f"{features}: {error}, the layers of {target}; {anew}") from error
    info = getattr(source, "info", {})
    told = {"hidden_size": getattr(source, "hidden_size", None), "vocab_size": info.get("vocab_size")}
    for name, found in told.items():
        expected = getattr(sizes, name)
        if found is not None and found != expected:
            raise FeatureStoreError(f"{features}: {name} is {found} there, {target} has {expected}; {anew}")


def check_names_something(path: str | Path, vocab: VocabMap, rows: TrainingRows, read_row, recipe: Recipe) -> None:
    """VocabError for a map that names none of the tokens that rows, spread over the training, are to predict: every
    slot would be left out, and the loss be 0 to the end."""
    if not recipe.drop_oov:
        return
    pieces, named_V = list(rows.lengths), vocab.t2d()
    count = min(LOOK, len(pieces))
    for piece in (pieces[i * len(pieces) // count] for i in range(count)):
        batch = make_batch([read_row(piece)], recipe.ttt_steps, recipe.loss_mask_kind)
        if bool(named_V[batch.label_ids_KN[batch.weight_KN > 0]].any()):
            return
    raise VocabError(
        f"{path} names none of the tokens that {count} of {len(pieces)} rows are to predict: it was made of another "
        "text; use the map that was made with these features, or make it again"
    )


def chosen_rows(features: str | Path, source, rows: TrainingRows, row_ids: Sequence[str]) -> TrainingRows:
    """The rows of these ids. Those that have no slot to train, or are dropped for their length, are left out.

    ValueError for an id that is no training row of the features, and when nothing is left.
    """
    known = {row_id for row_id in source.ids if source.index(row_id)["split"] == "train"}
    if missing := [row_id for row_id in row_ids if row_id not in known]:
        raise ValueError(
            f"row_ids: {len(missing)} of {len(row_ids)} are no training rows of {features} "
            f"({', '.join(map(repr, missing[:SHOWN]))}{', ...' * (len(missing) > SHOWN)}); name rows of split 'train'"
        )
    chosen = rows.subset(row_ids)
    if not chosen.lengths:
        raise ValueError(
            f"row_ids: none of the {len(row_ids)} rows of {features} has a slot to train: their loss masks are empty, "
            "or they are longer than max_length; name others"
        )
    return chosen


def shard_of(source, rows: TrainingRows) -> Callable[[str], str] | None:
    """A function from piece id to the shard it is read from; None where rows do not come from shards."""
    if not all("shard" in source.index(row_id) for row_id in rows.row_ids[:1]):
        return None
    return lambda piece_id: source.index(rows.row_of(piece_id))["shard"]


def measured_rows(features: str | Path, source, limit: int) -> list[str]:
    """Ids of at most `limit` held-out rows. ValueError when rows are wanted and there is none to measure on."""
    found = heldout_rows(source, limit=limit)
    if limit and not found:
        raise ValueError(
            f"heldout_rows={limit}, but {features} has no row of split 'heldout' with an answer of three tokens: set "
            "heldout_rows=0 and evaluate_every=None, or let notebook 01 keep some (limit_heldout)"
        )
    return found


def device_of(device: str, rank: int) -> str:
    """The device of a process of the team. ValueError where there is no GPU."""
    if device == "cpu":
        return device
    count = torch.cuda.device_count()
    if not count:
        raise ValueError(f"device={device!r}, but torch sees no GPU on this machine: set device='cpu'")
    return f"cuda:{rank % count}"


def checked(read_row: Callable, vocab_size: int) -> Callable:
    """`read_row` with a look at the token ids. ValueError naming a row of ids that the target does not have; a negative
    one would count from the end of the vocabulary."""

    def read(piece_id: str):
        row = read_row(piece_id)
        ids_T = row.input_ids_T
        if wrong := [int(end) for end in (ids_T.min(), ids_T.max()) if not 0 <= end < vocab_size]:
            raise ValueError(
                f"row {piece_id!r} has token id {wrong[0]}, the target's run from 0 to {vocab_size - 1}: it was "
                "tokenized for another target; extract the features anew"
            )
        return row

    return read
