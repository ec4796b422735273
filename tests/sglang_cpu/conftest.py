"""The CPU kernels become importable as `sgl_kernel`, as in a server started with sglang_cpu/ on PYTHONPATH."""

import sys
from pathlib import Path

import torch

KERNELS = Path(__file__).resolve().parents[2] / "sglang_cpu"

if torch.cuda.is_available():
    collect_ignore_glob = ["test_*.py"]  # the package refuses to be imported where there is a GPU
else:
    sys.path.insert(0, str(KERNELS))
