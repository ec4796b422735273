"""Targets of three model families for the capture tests, and what transformers says their states are.

Shapes: T tokens, H hidden.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from eagle3lab.data.targets import resolve_target
from eagle3lab.engines.sglang.spec import ServerSpec
from tests.tiny import save_tiny_target

CHUNK = 24  # tokens the server prefills at once: longer rows come in pieces, short ones share a pass
LIMITS = {"max_running_requests": 8, "max_total_tokens": 2048, "mem_fraction": 0.3}


@dataclass(frozen=True)
class Case:
    """A target, the hs indices to capture (None: the default, which is `layers` too) and a server's further flags."""

    name: str
    layers: list[int]
    explicit: bool
    flags: tuple[str, ...] = ()


CASES = [  # the first one's server is killed by a test; pytest runs that one with the others of the first
    # mixed chunks: decoded tokens of other requests in the passes that bring rows
    Case("qwen3", [1, 3, 7], explicit=True, flags=("--skip-tokenizer-init", "--enable-mixed-chunk")),
    Case("smollm2", [2, 15, 27], explicit=False),
    Case("deepseek_v3", [0, 3, 6], explicit=True, flags=("--skip-tokenizer-init", "--disable-shared-experts-fusion")),
]


def target_folder(case: Case, folder: Path) -> Path:
    """SmolLM2, or a random target made in `folder`."""
    if case.name == "smollm2":
        return Path(resolve_target("HuggingFaceTB/SmolLM2-135M-Instruct"))
    made = save_tiny_target(folder / case.name, case.name, seed=1)
    if case.name == "deepseek_v3":
        _as_published(made)
    return made


def _as_published(folder: Path) -> None:
    """What the config.json of published DeepseekV3 targets says and SGLang reads, and transformers does not write."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {
        "moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "num_nextn_predict_layers": 0,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1,
            "mscale": 1.0, "mscale_all_dim": 1.0,
        },
    }  # fmt: skip
    config.pop("rope_parameters", None)
    path.write_text(json.dumps(config))


def server_spec(case: Case, target: Path, folder: Path, dtype: str = "float32", chunk: int = CHUNK) -> ServerSpec:
    """A CPU server that captures into `folder`."""
    layers = tuple(case.layers) if case.explicit else None
    extra = (*case.flags, "--chunked-prefill-size", str(chunk))
    return ServerSpec(
        str(target), dtype=dtype, device="cpu", aux_layers=layers, capture_folder=str(folder), extra=extra, **LIMITS
    )


def rows(vocab_size: int, lengths: list[int], seed: int = 0) -> list[tuple[str, list[int]]]:
    """(id, random tokens) of these lengths."""
    draw = torch.Generator().manual_seed(seed)
    return [(f"row {n}:{i}", torch.randint(vocab_size, (n,), generator=draw).tolist()) for i, n in enumerate(lengths)]


class Reference:
    """transformers' hidden states in float32."""

    def __init__(self, target: Path):
        self._model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32, attn_implementation="eager")
        self._model.eval()
        self.vocab_size, self.layers = self._model.config.vocab_size, self._model.config.num_hidden_layers

    @torch.inference_mode()
    def states(self, input_ids: list[int]) -> list[torch.Tensor]:
        """hs[0] ... hs[L] of one row, each [T, H]; hs[L] is after the final norm."""
        return [hs[0] for hs in self._model(torch.tensor([input_ids]), output_hidden_states=True).hidden_states]


def error(found_TH: torch.Tensor, expected_TH: torch.Tensor) -> float:
    """Largest relative error of a token's state, 0 for no tokens."""
    assert found_TH.shape == expected_TH.shape
    if not len(found_TH):
        return 0.0
    found_TH, expected_TH = found_TH.float(), expected_TH.float()
    return float(((found_TH - expected_TH).norm(dim=-1) / expected_TH.norm(dim=-1)).max())
