"""A disk that is full at a checkpoint: the training stops and says so; what was there is whole, and it goes on."""

import errno

import pytest
import torch

from eagle3lab.draft.state import checkpoints
from eagle3lab.features.layout import DiskFullError
from tests.draft.test_train import training, weights_of
from tests.small_disk import mounted


def fill(path):
    """Takes every free page."""
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC


def test_a_full_disk_stops_a_training_that_goes_on_when_there_is_room(tmp_path, head):
    whole, expected = training(tmp_path, head)
    list(whole.run())
    with mounted(tmp_path / "disk", 4 << 20) as disk:
        trainer, _ = training(disk.folder, head)
        rows = trainer.run(checkpoint_every=1, log_every=1)
        assert [next(rows)["step"] for _ in range(3)] == [1, 2, 3]
        kept = {path: path.read_bytes() for path in (disk.folder / "state").rglob("*") if path.is_file()}
        fill(disk.folder / "others")
        with pytest.raises(DiskFullError, match=r"the disk of .*state is full .* make room and run it again"):
            list(rows)
        assert kept == {path: path.read_bytes() for path in (disk.folder / "state").rglob("*") if path.is_file()}
        assert [path.name for path in checkpoints(disk.folder / "state")] == ["step-000002", "step-000003"]
        (disk.folder / "others").unlink()
        again, draft = training(disk.folder, head)
        assert again.step == 3
        list(again.run(checkpoint_every=1))
        for name, weights in weights_of(expected).items():
            assert torch.equal(weights_of(draft)[name], weights), name
