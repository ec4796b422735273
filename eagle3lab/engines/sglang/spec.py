"""What a server should be, as data: nothing of a release's flags, nothing of files."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3lab.engines.servers.own_flags import SGLANG
from eagle3lab.engines.servers.spec import SpecError, check_values, checked_layers, checked_words

NEED_DRAFT = ("EAGLE3", "STANDALONE", "DFLASH")  # EAGLE without one is the target's own MTP head


@dataclass(frozen=True)
class ServerSpec:
    """One SGLang server. Raises SpecError when parameters contradict each other.

    target, draft, tokenizer: local folders (or hub names, which the server fetches itself).
    algorithm: None is EAGLE3 when there is a draft or states are captured, and no speculation otherwise.
    num_draft_tokens: nodes of the verified tree, its root included; None is num_steps + 1, which is the chain's.
    aux_layers: hs indices to capture, None for SGLang's default; only with return_aux or capture_folder.
    return_aux: answers may carry aux states as JSON. capture_folder: the capture plugin writes them there.
    mem_fraction: share of the device's memory for weights and KV cache. extra: further flags, as on a command line;
    those of servers/own_flags.py are refused, fields stand for them.
    """

    target: str
    draft: str | None = None
    algorithm: str | None = None
    num_steps: int = 3
    topk: int = 1
    num_draft_tokens: int | None = None
    dtype: str = "bfloat16"
    device: str = "cuda"
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    mem_fraction: float | None = None
    context_length: int | None = None
    cuda_graphs: bool = True
    tp: int = 1
    aux_layers: tuple[int, ...] | None = None
    return_aux: bool = False
    capture_folder: str | None = None
    tokenizer: str | None = None
    trust_remote_code: bool = False
    seed: int = 0
    extra: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ("target", "draft", "tokenizer", "capture_folder"):
            value = getattr(self, name)
            if value is not None:
                self._set(name, str(value))
        self._set("extra", checked_words(self.extra, SGLANG))
        if self.aux_layers is not None:
            self._set("aux_layers", checked_layers(self.aux_layers))
        if self.algorithm is not None:
            self._set("algorithm", self.algorithm.upper())
        limits = ("max_running_requests", "max_total_tokens", "context_length")
        check_values(self, ("num_steps", "topk", "num_draft_tokens", "tp", *limits))
        self._check_combinations()

    @property
    def captures(self) -> bool:
        """Does this server hand out the target's states."""
        return self.return_aux or self.capture_folder is not None

    @property
    def speculation(self) -> str | None:
        """The value of --speculative-algorithm, None without one. When states are captured it only names whose
        convention of layers is meant."""
        return self.algorithm or ("EAGLE3" if self.draft or self.captures else None)

    @property
    def draft_tokens(self) -> int:
        """num_draft_tokens with its default filled in."""
        return self.num_steps + 1 if self.num_draft_tokens is None else self.num_draft_tokens

    def _set(self, name: str, value) -> None:
        object.__setattr__(self, name, value)

    def _check_combinations(self) -> None:
        if self.topk > 1 and self.num_draft_tokens is None:
            raise SpecError(f"topk={self.topk} drafts a tree: num_draft_tokens must say how many nodes are verified")
        if self.captures and self.draft:
            raise SpecError("states are captured without a draft: leave out draft, or return_aux and capture_folder")
        if self.captures and self.speculation != "EAGLE3":
            raise SpecError(f"algorithm={self.algorithm!r}: states are captured by the convention of EAGLE3")
        if self.aux_layers is not None and not self.captures:
            raise SpecError("aux_layers is for capturing; a drafter's layers stand in its own config.json")
        if self.algorithm in NEED_DRAFT and not self.draft and not self.captures:
            raise SpecError(f"algorithm={self.algorithm!r} needs a draft (a drafter's folder)")
        if self.draft and self.algorithm == "NGRAM":
            raise SpecError("algorithm='NGRAM' has no drafter: leave out draft")
