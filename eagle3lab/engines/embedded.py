"""The embedded engine: a transformers model run in this process, on a CPU or one GPU.

Shapes: V vocabulary, H hidden.
"""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import torch

from eagle3lab.draft.checkpoint import load_draft
from eagle3lab.engines.base import Completion, Features, Request, SpecCompletion
from eagle3lab.engines.capture import capture
from eagle3lab.engines.generate import generate
from eagle3lab.engines.speculate import speculate
from eagle3lab.engines.target import TargetModel


class EmbeddedEngine:
    """Runs the model of a local Hugging Face folder. Works for models with full attention in every layer
    (Llama, Qwen3, DeepseekV3 with MLA and experts, ...).

    `aux_layers` are hs indices (default [2, L//2, L-3]); `end_ids` are the tokens that end an answer
    (default: those of generation_config.json, else of config.json; a chat template may end turns with
    another one, so pass it). trust_remote_code: the model may be code in its folder.
    Raises CollidingLayersError or ValueError for a model it cannot run.
    """

    def __init__(
        self,
        folder: str | Path,
        dtype: str = "float32",
        aux_layers: Iterable[int] | None = None,
        device: str = "cpu",
        end_ids: Collection[int] | None = None,
        trust_remote_code: bool = False,
    ):
        self.target = TargetModel(folder, dtype, device, aux_layers, trust_remote_code)
        self.end_ids = self.target.config_end_ids() if end_ids is None else frozenset(end_ids)

    def __enter__(self) -> "EmbeddedEngine":
        return self

    def __exit__(self, *failure) -> None:
        self.close()

    def close(self) -> None:
        """Nothing: it is here so that every engine is used the same way."""

    @property
    def config(self):
        """The model's transformers config."""
        return self.target.config

    @property
    def aux_layers(self) -> list[int]:
        return self.target.aux_layers

    @property
    def embed_VH(self) -> torch.Tensor:
        """The target's input embedding, in the engine's dtype."""
        return self.target.model.get_input_embeddings().weight

    @property
    def lm_head_VH(self) -> torch.Tensor:
        """The target's output head: logits = last_TH @ lm_head_VH.T."""
        return self.target.model.get_output_embeddings().weight

    def generate(
        self, requests: Iterable[Request], batch_size: int = 64, streamed: bool = True
    ) -> Iterator[Completion]:
        """See `engines.generate.generate`. `streamed` is every engine's: here the first token's time is always told."""
        return generate(self.target, requests, batch_size, self.end_ids)

    def capture(self, rows: Iterable[tuple[str, list[int]]], batch_tokens: int = 4096) -> Iterator[Features]:
        """See `engines.capture.capture`."""
        return capture(self.target, rows, batch_tokens)

    def speculate(self, draft, requests: Iterable[Request], num_steps: int = 3) -> Iterator[SpecCompletion]:
        """See `engines.speculate.speculate`. `draft` may also be a drafter's folder: it is then read in the engine's
        dtype, and its aux layers must be the engine's."""
        if isinstance(draft, str | Path):
            draft = self._read_draft(draft)
        return speculate(self.target, draft, requests, num_steps, self.end_ids)

    def _read_draft(self, folder: str | Path):
        draft = load_draft(folder, self.embed_VH, self.embed_VH.dtype).to(self.target.device)
        if list(draft.config.aux_layers) != self.aux_layers:
            raise ValueError(
                f"{folder} was trained on aux_layers {list(draft.config.aux_layers)}, "
                f"this engine captures {self.aux_layers}: make the engine with the drafter's"
            )
        return draft
