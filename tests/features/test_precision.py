"""What "auto" stands for: bfloat16 where the hardware computes in it, float32 elsewhere."""

import platform
from pathlib import Path

import pytest
import torch

from eagle3lab.draft.recipe import Recipe
from eagle3lab.features import precision
from eagle3lab.features.precision import resolve_dtype


@pytest.fixture
def machine(monkeypatch):
    """Sets what the machine can do."""

    def set_to(bfloat16: bool, gpu: bool):
        monkeypatch.setattr(precision, "_cpu_has_bfloat16", lambda: bfloat16)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)

    return set_to


@pytest.mark.parametrize(
    ("bfloat16", "gpu", "device", "expected"),
    [
        (False, False, None, "float32"),
        (True, False, None, "bfloat16"),
        (False, True, None, "bfloat16"),
        (False, False, "cuda", "bfloat16"),  # the server's device counts, wherever it stands
        (False, True, "cpu", "float32"),
        (True, False, "cpu", "bfloat16"),
    ],
)
def test_auto_goes_by_what_computes(machine, bfloat16, gpu, device, expected):
    machine(bfloat16, gpu)
    assert resolve_dtype("auto", device) == expected
    if device is None:
        assert Recipe().compute_dtype == expected == Recipe().to_dict()["compute_dtype"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_named_is_taken(machine, dtype):
    for bfloat16 in (False, True):
        machine(bfloat16, gpu=False)
        assert resolve_dtype(dtype) == dtype == Recipe(compute_dtype=dtype).compute_dtype


def test_the_processor_is_asked():
    """Against the flags that the kernel read from the processor."""
    told = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not told.exists():
        pytest.skip("the flags are read from /proc/cpuinfo as Linux on x86 writes it; this machine has none")
    has = "avx512_bf16" in told.read_text().split()
    assert resolve_dtype("auto", "cpu") == ("bfloat16" if has else "float32")


def test_another_word_is_refused_by_its_parameters_name():
    with pytest.raises(ValueError, match="^dtype='float16' is not one of auto, bfloat16, float32"):
        resolve_dtype("float16")
    with pytest.raises(ValueError, match="^compute_dtype='half'"):
        Recipe(compute_dtype="half")
