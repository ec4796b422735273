"""Which precision matrix products run in where nobody says it."""

import platform

import torch

DTYPES = ("auto", "bfloat16", "float32")


def resolve_dtype(dtype: str, device: str | None = None, name: str = "dtype") -> str:
    """ "bfloat16" or "float32". "auto" is bfloat16 on a GPU and on a CPU with instructions for it, float32 on others.

    Without them torch emulates the products; on two AVX2 cores that runs at 15 GFLOP/s, float32 at 83.
    device: of the server that computes, "cuda" or "cpu"; None: what torch finds here. name: of the parameter, for the
    ValueError of another word.
    """
    if dtype not in DTYPES:
        raise ValueError(f"{name}={dtype!r} is not one of {', '.join(DTYPES)}")
    if dtype != "auto":
        return dtype
    on_gpu = device == "cuda" if device else torch.cuda.is_available()
    return "bfloat16" if on_gpu or _cpu_has_bfloat16() else "float32"


def _cpu_has_bfloat16() -> bool:
    if platform.machine().lower() in ("x86_64", "amd64"):
        return torch.cpu._is_avx512_bf16_supported()  # oneDNN takes any AVX-512 for support, and emulates it there
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
