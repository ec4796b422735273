"""A transformers model taken apart into the few steps that generation, capture and speculation share.

Shapes: B rows, T tokens, A aux layers, H hidden, V vocabulary.
"""

from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from eagle3lab.draft.aux_layers import check_aux_layers, default_aux_layers
from eagle3lab.engines import attention
from eagle3lab.engines.base import NonFiniteError
from eagle3lab.engines.few_rows import speed_up_few_rows
from eagle3lab.engines.kv import KVCache

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LOGIT_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}  # largest difference, as a share of the largest logit
PAD_ID = 0  # never visible: padding stands to the right of its row


class TargetModel:
    """The model of a local Hugging Face folder, ready for batched forward passes.

    Raises ValueError for an unknown dtype, for aux layers that do not exist, and for models whose attention
    or head this engine would get wrong (checked by running both ways on a few tokens).
    """

    def __init__(self, folder: str | Path, dtype: str, device: str, aux_layers=None, trust_remote_code: bool = False):
        if dtype not in DTYPES:
            raise ValueError(f"dtype={dtype!r} is not one of {', '.join(DTYPES)}")
        self.folder, self.device, self.trust_remote_code = Path(folder), torch.device(device), trust_remote_code
        transformers_logging.disable_progress_bar()  # progress is shown by the run, one display a notebook
        model = AutoModelForCausalLM.from_pretrained(
            self.folder, dtype=DTYPES[dtype], attn_implementation=attention.register(), local_files_only=True,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
        self.model = model.to(self.device).eval().requires_grad_(False)
        speed_up_few_rows(self.model)
        self.config = model.config
        self.num_layers = model.config.num_hidden_layers
        self.vocab_size = model.config.vocab_size
        self.max_context = model.config.max_position_embeddings
        kinds = {*(getattr(model.config, "layer_types", None) or ["full_attention"])}
        if kinds != {"full_attention"}:
            raise ValueError(f"{self.folder}: layer types {sorted(kinds)} are not served by the embedded engine")
        self._chosen_layers = None if aux_layers is None else check_aux_layers(aux_layers, self.num_layers)
        self._check_against_own_forward(LOGIT_TOLERANCE[dtype])

    @property
    def aux_layers(self) -> list[int]:
        """The layers that are captured. Generation needs none, so a default that collides is refused only here."""
        return default_aux_layers(self.num_layers) if self._chosen_layers is None else self._chosen_layers

    def config_end_ids(self) -> frozenset[int]:
        """End tokens named by generation_config.json, else by config.json."""
        ends = self.model.generation_config.eos_token_id
        if ends is None:
            ends = self.config.eos_token_id
        return frozenset([] if ends is None else [ends] if isinstance(ends, int) else ends)

    def new_cache(self, rows: int, max_tokens: int) -> KVCache:
        return KVCache(self.num_layers, rows, max_tokens)

    def prefill(self, rows: list[list[int]], cache: KVCache | None = None) -> torch.Tensor:
        """Runs rows of token ids from position 0, right-padded, into new rows of the cache when one is given.

        Returns the post-norm last hidden state [B, T, H]; slots past a row's end hold nothing of meaning.
        """
        lengths = [len(row) for row in rows]
        width = max(lengths)
        ids_BT = torch.full((len(rows), width), PAD_ID)
        for i, row in enumerate(rows):
            ids_BT[i, : len(row)] = torch.as_tensor(row)
        positions_1T = torch.arange(width, device=self.device)[None]
        if cache is not None:
            cache.plan_prefill(lengths)
        return self._forward(ids_BT.to(self.device), positions_1T, None, cache)

    def append(self, ids_BT: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """Runs T more tokens of every live row of the cache; returns the post-norm last hidden state [B, T,
        H]."""
        positions_BT, mask = cache.plan_append(ids_BT.shape[1], self.device)
        return self._forward(ids_BT.to(self.device), positions_BT, mask, cache)

    def logits(self, last_BTH: torch.Tensor) -> torch.Tensor:
        """Logits [.., V] of post-norm hidden states."""
        return self.model.get_output_embeddings()(last_BTH)

    @contextmanager
    def tapped(self):
        """Within the block, a forward pass leaves hs[k] of the aux layers in the yielded dict, k -> [B, T,
        H]."""
        states, layers = {}, self.model.get_decoder().layers

        def tap(k):
            def hook(module, args, kwargs):
                states[k] = args[0] if args else kwargs["hidden_states"]

            return layers[k].register_forward_pre_hook(hook, with_kwargs=True)

        hooks = [tap(k) for k in self.aux_layers]
        try:
            yield states
        finally:
            for hook in hooks:
                hook.remove()

    def stack_aux(self, states: dict, row: int, length: int) -> torch.Tensor:
        """aux_TAH of one row from the states of `tapped`, in the order of `aux_layers`."""
        return torch.stack([states[k][row, :length] for k in self.aux_layers], dim=1)

    def _forward(self, ids_BT, positions, mask, cache):
        decoder = self.model.get_decoder()
        out = decoder(
            input_ids=ids_BT,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return out.last_hidden_state

    @torch.inference_mode()
    def _check_against_own_forward(self, tolerance: float) -> None:
        """Some families scale or cap logits after the head; then head(last hidden) is not what the model
        predicts."""
        ids_1T = torch.arange(4, device=self.device)[None] % self.vocab_size
        own_1TV = self.model(input_ids=ids_1T, use_cache=False).logits.float()
        ours_1TV = self.logits(self.prefill(ids_1T.tolist())).float()
        difference = (own_1TV - ours_1TV).abs().max() / own_1TV.abs().max().clamp(min=1e-6)
        if not difference <= tolerance:
            raise ValueError(
                f"{self.folder}: logits of this engine and of the model's own forward pass differ by "
                f"{difference:.2g} of the largest logit (or are NaN): "
                "the model changes logits after its head, or its weights are broken"
            )


def greedy_tokens(logits_BV: torch.Tensor, row_ids: list[str]) -> torch.Tensor:
    """Token of the largest logit (the first of equals), int64 [B].

    Raises NonFiniteError naming the first row (`row_ids`, one a slot) whose largest logit is NaN or infinite.
    """
    largest_B, tokens_B = logits_BV.max(-1)  # one pass; on a CPU several times faster than argmax
    bad_B = ~largest_B.isfinite()
    if bad_B.any():
        raise NonFiniteError(
            f"row {row_ids[int(bad_B.nonzero()[0])]!r}: the target's logits are NaN or infinite; "
            "check its weights and dtype"
        )
    return tokens_B
