"""Tensors of a drafter's folder: the same from safetensors and from a pickle of tensors, none from anything else."""

import pytest
import torch
from safetensors.torch import save_file

from eagle3lab.draft.stored import StoredError, StoredTensors

TENSORS = {
    "fc.weight": torch.arange(12, dtype=torch.bfloat16).view(3, 4),
    "d2t": torch.tensor([0, 2, 5]),
    "t2d": torch.tensor([True, False, True]),
}


def safetensors(folder, tensors=TENSORS, name="model.safetensors"):
    save_file(tensors, folder / name)


def pickled(folder, tensors=TENSORS, name="pytorch_model.bin"):
    torch.save(tensors, folder / name)


def in_parts(save, ending):
    def parts(folder):
        for number, key in enumerate(TENSORS):
            save(folder, {key: TENSORS[key]}, ending.format(number))

    return parts


WAYS = {
    "safetensors": safetensors,
    "pickle": pickled,
    "safetensors in parts": in_parts(safetensors, "model-{}-of-3.safetensors"),
    "pickle in parts": in_parts(pickled, "pytorch_model-{}-of-3.bin"),
}


@pytest.mark.parametrize("way", WAYS)
def test_names_shapes_and_values_are_the_same_however_they_are_stored(tmp_path, way):
    WAYS[way](tmp_path)
    stored = StoredTensors(tmp_path)
    assert set(stored) == set(TENSORS) and len(stored) == 3 and "d2t" in stored and "other" not in stored
    for name, tensor in TENSORS.items():
        assert stored.shape(name) == tuple(tensor.shape)
        assert stored[name].dtype == tensor.dtype and torch.equal(stored[name], tensor)


def test_safetensors_win_where_a_folder_has_both(tmp_path):
    safetensors(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    assert set(StoredTensors(tmp_path)) == set(TENSORS)


@pytest.mark.parametrize("content", [{"code": print}, [torch.zeros(1)], {"step": 3}], ids=str)
def test_a_pickle_of_more_than_tensors_is_refused(tmp_path, content):
    pickled(tmp_path, content)
    with pytest.raises(StoredError, match=r"pytorch_model.bin: cannot be read \(.*: save them as safetensors\)"):
        StoredTensors(tmp_path)


@pytest.mark.parametrize("way", ["safetensors", "pickle"])
@pytest.mark.parametrize("bytes_kept", [0, 40])
def test_a_cut_file_is_named(tmp_path, way, bytes_kept):
    WAYS[way](tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:bytes_kept])
    with pytest.raises(StoredError, match=f"{file.name}: cannot be read"):
        StoredTensors(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"")  # another name is another program's file
    with pytest.raises(StoredError, match=r"has no \*.safetensors and no pytorch_model\*.bin: convert the drafter"):
        StoredTensors(tmp_path)
