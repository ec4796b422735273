"""What a vLLM server should be, as data: nothing of its flags, nothing of files."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3lab.engines.servers.own_flags import VLLM
from eagle3lab.engines.servers.spec import SpecError, check_values, checked_layers, checked_words


@dataclass(frozen=True)
class VllmSpec:
    """One vLLM server. Raises SpecError when parameters contradict each other.

    target, draft: local folders (or hub names, which the server fetches itself); a draft is an EAGLE-3 one, of which
    vLLM drafts chains of num_steps tokens.
    capture_folder: the server hands out states instead of speculating, and writes them there; aux_layers: which (hs
    indices), beside the last state.
    context_length: None is the target's. max_batch_tokens: of one forward pass, longer prompts come in pieces.
    mem_fraction: share of a GPU's memory. kv_cache_mib: size of the cache; None is what a GPU has left, and 1 GiB on a
    CPU. cuda_graphs: captured graphs and compiled code (GPUs only). extra: further flags, as on a
    command line; those of servers/own_flags.py are refused, fields stand for them.
    """

    target: str
    draft: str | None = None
    num_steps: int = 3
    dtype: str = "bfloat16"
    device: str = "cuda"
    max_running_requests: int | None = None
    max_batch_tokens: int | None = None
    mem_fraction: float | None = None
    kv_cache_mib: int | None = None
    context_length: int | None = None
    cuda_graphs: bool = True
    tp: int = 1
    aux_layers: tuple[int, ...] | None = None
    capture_folder: str | None = None
    trust_remote_code: bool = False
    seed: int = 0
    extra: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ("target", "draft", "capture_folder"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, str(getattr(self, name)))
        object.__setattr__(self, "extra", checked_words(self.extra, VLLM))
        if self.aux_layers is not None:
            object.__setattr__(self, "aux_layers", checked_layers(self.aux_layers))
        counts = ("num_steps", "tp", "kv_cache_mib", "max_running_requests", "max_batch_tokens", "context_length")
        check_values(self, counts)
        if self.capture_folder and self.draft:
            raise SpecError("states are captured without a draft: leave out draft, or capture_folder")
        if self.aux_layers is not None and not self.capture_folder:
            raise SpecError("aux_layers is for capturing; a drafter's layers stand in its own config.json")
