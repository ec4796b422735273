"""States of rows from a server that captures: asked as prompts, read from the files that its connector writes.

vLLM hands out the last layer's output before the final norm; the norm is applied here, in float32.
Shapes: T tokens, A aux layers, L one more than A, H hidden.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from pathlib import Path

import torch
from safetensors.torch import load_file

from eagle3lab.draft.target_weights import read_target_weights
from eagle3lab.engines.base import Features, NonFiniteError
from eagle3lab.engines.servers.bounded import bounded
from eagle3lab.engines.servers.errors import BadAnswer, ServerFault
from eagle3lab.engines.servers.threads import iterate_in_thread
from eagle3lab.engines.vllm.client import VllmClient
from eagle3lab.features.foreign_read import rms_norm
from eagle3lab.workbench.files import read_json

POLL_S = 0.01
OTHER_NORMS = ("Gemma",)  # their RMSNorm scales by 1 + weight


class FinalNorm:
    """The target's final norm. ValueError for a target that ends with another kind of norm."""

    def __init__(self, target: str | Path):
        config = read_json(Path(target) / "config.json")
        text, architecture = config.get("text_config") or config, (config.get("architectures") or [""])[0]
        if "rms_norm_eps" not in text or architecture.startswith(OTHER_NORMS):
            raise ValueError(f"{target} ({architecture}) does not end with a plain RMSNorm: capture it with SGLang")
        self.eps, self.weight_H = float(text["rms_norm_eps"]), read_target_weights(target).norm_H

    def __call__(self, state_TH: torch.Tensor) -> torch.Tensor:
        return rms_norm(state_TH, self.weight_H, self.eps).to(state_TH.dtype)


def capture_states(
    url: str,
    norm: FinalNorm,
    rows: Iterable[tuple[str, list[int]]],
    order: list[int],
    concurrency: int,
    patience_s: float,
) -> Iterator[Features]:
    """Features of (id, input_ids) rows, in any order. order[a]: the place of aux layer a among the states that the
    server writes, the last of which is the last layer's. patience_s: for a file after its answer. Raises as
    `VllmClient.prefill`, ServerFault when a file does not come, NonFiniteError; all name the row."""

    async def captured():
        async with VllmClient(url, concurrency=concurrency, timeout_s=patience_s) as client:

            async def one(row):
                row_id, ids = row
                answer = await client.prefill(row_id, ids)
                return _features(row_id, ids, await _states(answer, url, row_id, patience_s), norm, order)

            async with aclosing(bounded(rows, one, concurrency)) as given:
                async for features in given:
                    yield features

    return iterate_in_thread(captured)


async def _states(answer: dict, url: str, row_id: str, patience_s: float) -> dict[str, torch.Tensor]:
    """The file's tensors; the file is removed. It is whole as soon as it is there."""
    told = answer.get("kv_transfer_params") or {}
    if "hidden_states_path" not in told:
        raise BadAnswer(f"row {row_id!r}: {url} names no file of hidden states: it does not capture", url, row_id)
    path, waited = Path(told["hidden_states_path"]), 0.0
    while not path.is_file():
        if waited > patience_s:
            raise ServerFault(f"row {row_id!r}: {url} did not write {path} in {patience_s:g} s", url, row_id)
        await asyncio.sleep(POLL_S)
        waited += POLL_S
    tensors = load_file(path)
    path.unlink()
    return tensors


def _features(row_id: str, ids: list[int], tensors: dict[str, torch.Tensor], norm, order: list[int]) -> Features:
    states_TLH = tensors["hidden_states"]
    if tensors["token_ids"].tolist() != list(ids) or states_TLH.shape[:2] != (len(ids), len(order) + 1):
        raise BadAnswer(f"row {row_id!r}: the server captured other tokens or layers than were asked", row_id=row_id)
    if not bool(torch.isfinite(states_TLH).all()):
        raise NonFiniteError(f"row {row_id!r}: the target's states hold NaN or infinity")
    ids_T = torch.tensor(ids, dtype=torch.int32)
    return Features(row_id, ids_T, states_TLH[:, order].contiguous(), norm(states_TLH[:, -1]))
