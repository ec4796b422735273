"""SGLang's CPU kernels in plain torch: what SGLang 0.5.23 imports from `sgl_kernel` when SGLANG_USE_CPU_ENGINE=1.

SGLang imports a compiled package of this name. Its CPU build is in no package registry, so this folder stands in for
it where there is no GPU: put `sglang_cpu/` on PYTHONPATH of the server. It implements the operations that have no
fallback inside SGLang and nothing else. In particular `convert_weight_packed` must stay undefined: its absence is what
makes SGLang use plain torch for linear layers, experts and norms.

`import sgl_kernel` raises ImportError where a GPU or another package of this name is present: these slow kernels must
never stand before the compiled ones.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

import torch

from sgl_kernel import attention
from sgl_kernel.accepted import fill_accept_out_cache_loc_cpu, fill_bonus_tokens_cpu, rotate_input_ids_cpu
from sgl_kernel.kv_copy import copy_all_layer_kv_cache_cpu
from sgl_kernel.token_pool import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
)
from sgl_kernel.tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]
__version__ = "0.5.23+torch.cpu"  # the SGLang release whose call sites the operations were written for


def _refuse_beside_compiled_kernels() -> None:
    here = Path(__file__)
    if torch.cuda.is_available():
        raise ImportError(
            f"{here.parent} holds slow CPU kernels, but this machine has a GPU: "
            f"take {here.parents[1]} off PYTHONPATH and install sglang with its own kernels"
        )
    for folder in sys.path:
        spec = PathFinder.find_spec("sgl_kernel", [folder])
        if spec and spec.origin and not here.samefile(spec.origin):
            raise ImportError(
                f"{here.parent} must not be used beside the sgl_kernel package in {Path(spec.origin).parent}: "
                f"uninstall that one or take {here.parents[1]} off PYTHONPATH"
            )


_refuse_beside_compiled_kernels()
attention.register()
