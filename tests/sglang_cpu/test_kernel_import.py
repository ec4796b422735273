"""What `sgl_kernel` offers, and where it refuses to be imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sgl_kernel
import torch

KERNELS = Path(sgl_kernel.__file__).parents[1]


def test_sglang_finds_attention_and_falls_back_to_torch_for_everything_else():
    assert hasattr(torch.ops.sgl_kernel, "decode_attention_cpu")
    assert hasattr(torch.ops.sgl_kernel, "extend_attention_cpu")
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")


def test_it_cannot_be_imported_where_there_is_a_gpu():
    result = subprocess.run(
        [sys.executable, "-c", "import torch; torch.cuda.is_available = lambda: True; import sgl_kernel"],
        env=os.environ | {"PYTHONPATH": str(KERNELS)}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 1
    assert "ImportError" in result.stderr and f"take {KERNELS} off PYTHONPATH" in result.stderr


@pytest.mark.parametrize("place", [0, -1])
def test_it_refuses_to_stand_beside_another_package_of_its_name(tmp_path, monkeypatch, place):
    other = tmp_path / "sgl_kernel"
    other.mkdir()
    (other / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path] if place == 0 else [*sys.path, str(tmp_path)])
    with pytest.raises(ImportError, match=str(other)):
        sgl_kernel._refuse_beside_compiled_kernels()


def test_its_own_folder_twice_on_the_path_is_no_other_package(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(KERNELS), str(KERNELS / ".." / KERNELS.name)])
    sgl_kernel._refuse_beside_compiled_kernels()
