"""Run in a process of its own, speculators on its path: it converts and opens our drafter, and writes a dump.

Usage: speculators_judge.py FOLDER AUX_LAYER ... It reads ours/ (a drafter), target/ and row.safetensors (ids [T], aux
[T, A H], states [T, A + 1, H]) there, and writes converted/ (a drafter), dump/ (features) and found.safetensors.
"""

import sys
from pathlib import Path

import torch
from hs_connectors.fp8_utils import quantize_tensor_to_fp8
from safetensors.torch import load_file, save_file
from speculators.convert.eagle.eagle3_converter import Eagle3Converter
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig


def main(folder: Path, aux_layers: list[int]) -> None:
    row = load_file(folder / "row.safetensors")
    Eagle3Converter().convert(
        folder / "ours", folder / "converted", str(folder / "target"), validate=False,
        eagle_aux_hidden_state_layer_ids=aux_layers,
    )  # fmt: skip
    config = Eagle3SpeculatorConfig.from_pretrained(folder / "converted")
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel.from_pretrained(folder / "converted", config=config).float().eval()
    seen = []
    model.lm_head.register_forward_hook(lambda _, __, logits: seen.append(logits[0].detach().clone()))
    T = len(row["ids"])
    with torch.no_grad():
        model(row["aux"][None], row["ids"][None], document_ids=torch.zeros(1, T, dtype=torch.long), ttt_steps=1)
    found = {"logits": seen[0], "d2t": model.d2t.clone(), "target_layer_ids": torch.tensor(model.target_layer_ids)}
    (folder / "dump").mkdir()
    save_file({"token_ids": row["ids"], "hidden_states": row["states"]}, folder / "dump" / "hs_0.safetensors")
    states, scales = quantize_tensor_to_fp8(row["states"])
    save_file(
        {"token_ids": row["ids"], "hidden_states": states, "hidden_states_scales": scales},
        folder / "dump" / "hs_1.safetensors",
    )
    save_file(found, folder / "found.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(layer) for layer in sys.argv[2:]])
