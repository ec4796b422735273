"""Run in a process of its own, SpecForge on its path: it opens our drafter and our dump, and writes its own drafter.

Usage: specforge_judge.py FOLDER. It reads ours/ (a drafter), dump/ (features) and row.safetensors (embed [V, H], ids
[T], aux [T, A H]) there, and writes theirs/ (a drafter) and found.safetensors. Shapes as in eagle3lab/draft/model.py.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from specforge.modeling.auto import AutoDraftModel
from specforge.runtime.data_plane.offline_reader import OfflineManifestReader, list_feature_files, load_feature_file


@torch.no_grad()
def logits(model, row):
    """First-step logits [T, W]: states and embeddings through fusion, layer, norm and head."""
    model.embed_tokens.weight.copy_(row["embed"])
    embedded = model.embed_input_ids(row["ids"][None])
    return model.lm_head(model(row["aux"][None], embedded))[0].contiguous()


def main(folder: Path) -> None:
    row = load_file(folder / "row.safetensors")
    model = AutoDraftModel.from_pretrained(folder / "ours", torch_dtype=torch.float32).eval()
    model.midlayer.self_attn._init_rope()  # its tables are in no file, and transformers' meta device leaves them empty
    found = {"logits": logits(model, row), "d2t": model.d2t.clone()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)  # a drafter of theirs, not ours again
    found["halved"] = logits(model, row)
    model.save_pretrained(folder / "theirs")
    refs = [*OfflineManifestReader(str(folder / "dump"), validate_files=True).read()]
    [path] = list_feature_files(str(folder / "dump"))
    found |= {f"dump.{name}": tensor.contiguous() for name, tensor in load_feature_file(path).items()}
    found["dump.tokens"] = torch.tensor([ref.num_tokens for ref in refs])
    save_file(found, folder / "found.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
