"""The draft vocabulary map."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from eagle3lab.draft.vocab import VocabError, VocabMap, build_vocab, count_tokens


def test_by_hand():
    counts = count_tokens([(torch.tensor([5, 2, 2, 7, 7, 7]), torch.tensor([False, True, True, True, True, True]))], 9)
    assert counts.tolist() == [0, 0, 2, 0, 0, 0, 0, 3, 0]  # the prompt's 5 is not counted
    vocab = build_vocab(counts, 2)
    assert vocab.target_ids_W.tolist() == [2, 7] and vocab.d2t().tolist() == [2, 6]
    assert vocab.draft_ids().tolist() == [-1, -1, 0, -1, -1, -1, -1, 1, -1]
    assert build_vocab(counts, 1).coverage(counts) == pytest.approx(3 / 5)


def test_ties_go_to_the_lower_id():
    assert build_vocab(torch.tensor([1, 4, 1, 1]), 2).target_ids_W.tolist() == [0, 1]


def test_more_ids_than_seen_are_refused():
    with pytest.raises(VocabError, match="no generated text to train on: see what 01_data_prep kept"):
        build_vocab(torch.zeros(4, dtype=torch.int64), 3)
    with pytest.raises(VocabError, match=r"draft_vocab_size=3, but only 2 distinct ids .* lower draft_vocab_size to 2"):
        build_vocab(torch.tensor([0, 4, 1, 0]), 3)


def test_absolute_ids_in_place_of_offsets_are_caught():
    vocab = VocabMap(torch.tensor([1, 4, 6]), 9)
    with pytest.raises(VocabError, match="d2t and t2d name different|outside"):
        VocabMap.from_tensors(vocab.target_ids_W, vocab.t2d())


@given(st.sets(st.integers(0, 59), min_size=1))
def test_offsets_round_trip(ids):
    vocab = VocabMap(torch.tensor(sorted(ids)), 60)
    again = VocabMap.from_tensors(vocab.d2t(), vocab.t2d())
    assert again.target_ids_W.tolist() == sorted(ids)
    draft_ids = vocab.draft_ids()
    assert all(int(draft_ids[target]) == place for place, target in enumerate(sorted(ids)))
    assert int((draft_ids >= 0).sum()) == len(ids) == int(vocab.t2d().sum())


def test_the_saved_map_reads_back_and_another_file_is_refused(tmp_path):
    vocab = VocabMap(torch.tensor([1, 4, 6]), 9)
    vocab.save(tmp_path / "map.safetensors")
    assert torch.equal(VocabMap.load(tmp_path / "map.safetensors").target_ids_W, vocab.target_ids_W)
    save_file({"d2t": vocab.d2t()}, tmp_path / "half.safetensors")
    with pytest.raises(VocabError, match="not d2t and t2d"):
        VocabMap.load(tmp_path / "half.safetensors")


def test_a_map_that_cannot_be_read_names_its_file(tmp_path):
    path = tmp_path / "map.safetensors"
    VocabMap(torch.tensor([1, 4, 6]), 9).save(path, corpus="abc")
    whole = path.read_bytes()
    for end in (0, 4, 20, len(whole) - 3):
        path.write_bytes(whole[:end])
        with pytest.raises(VocabError, match=f"{path}: the vocabulary map cannot be read .*; run notebook 03 again"):
            VocabMap.load(path)
    path.unlink()
    with pytest.raises(VocabError, match=f"{path}: the vocabulary map cannot be read"):
        VocabMap.load(path)


OFFSETS, NAMED = torch.tensor([1, 3, 4]), torch.tensor([0, 1, 0, 0, 1, 0, 1, 0, 0]).bool()


@pytest.mark.parametrize(
    "d2t, t2d, message",
    [
        (OFFSETS + 0.4, NAMED, "d2t must be a vector of whole numbers, is torch.float32"),
        (OFFSETS, NAMED.float(), "t2d must be a vector of whole numbers"),
        (OFFSETS[None], NAMED, "d2t must be a vector of whole numbers, is torch.int64"),
        (OFFSETS[0], NAMED, "d2t must be a vector of whole numbers"),
        (OFFSETS[:0], NAMED, "a non-empty int64 vector"),
        (OFFSETS[:2], NAMED, "name different target ids"),
        (OFFSETS + 3, NAMED, "outside 0..8"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_map_of_other_tensors_names_its_file(tmp_path, d2t, t2d, message):
    path = tmp_path / "map.safetensors"
    save_file({"d2t": d2t.contiguous(), "t2d": t2d}, path)
    with pytest.raises(VocabError, match=f"{path}: .*{message}.*; run notebook 03 again"):
        VocabMap.load(path)
    save_file({"d2t": OFFSETS, "t2d": NAMED.to(torch.uint8)}, path)  # as others write the mask
    assert VocabMap.load(path).target_ids_W.tolist() == [1, 4, 6]


def test_the_map_of_another_corpus_is_refused(tmp_path):
    vocab = build_vocab(torch.tensor([3, 0, 2, 5]), 2)
    vocab.save(tmp_path / "map.safetensors", corpus="abc")
    assert torch.equal(VocabMap.load(tmp_path / "map.safetensors", corpus="abc").target_ids_W, vocab.target_ids_W)
    assert torch.equal(VocabMap.load(tmp_path / "map.safetensors").target_ids_W, vocab.target_ids_W)
    with pytest.raises(VocabError, match="tokens of corpus abc, the features are of corpus xyz"):
        VocabMap.load(tmp_path / "map.safetensors", corpus="xyz")
    vocab.save(tmp_path / "unknown.safetensors")  # does not say: taken as it is
    assert VocabMap.load(tmp_path / "unknown.safetensors", corpus="xyz").size == 2


def test_the_full_vocabulary_holds_every_id():
    vocab = build_vocab(torch.tensor([3, 0, 2, 5]), None)
    assert vocab.target_ids_W.tolist() == [0, 1, 2, 3] and vocab.d2t().tolist() == [0, 0, 0, 0]
