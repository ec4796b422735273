"""vLLM's side of the capture: hidden states from its cache into a file a request. Runs inside the server alone.

vLLM's own connector for its method `extract_hidden_states` copies through pinned memory on a CUDA stream, which a CPU
server has not. This one copies at once; a finished request is then one whose file is whole. Seen with vLLM 0.32.0.

Shapes: T tokens of a request, A layers, H hidden.
"""

from __future__ import annotations

import os

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    PendingSave,
    extract_from_kv_cache,
)


class _Done:
    """An event that has happened."""

    def query(self) -> bool:
        return True


class HiddenStatesToFiles(ExampleHiddenStatesConnector):
    """Writes `<request>.safetensors`: token_ids int64 [T], hidden_states [T, A, H] in the target's dtype."""

    def _submit_async_write(self, pending: PendingSave) -> None:
        if not self._is_tp_rank_zero:
            return
        blocks_B = torch.tensor(pending.block_ids, dtype=torch.long)
        slots_S = (blocks_B[:, None] * self._block_size + torch.arange(self._block_size)).flatten()
        count = pending.token_ids.shape[0]
        states_TAH = extract_from_kv_cache(self._kv_cache, slots_S.to(self._kv_cache.device), count)
        part = pending.filename + ".part"
        save_file({"hidden_states": states_TAH.cpu().contiguous(), "token_ids": pending.token_ids}, part)
        os.replace(part, pending.filename)
        self._req_copy_events[pending.req_id] = _Done()
