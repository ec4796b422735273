"""Run in a process of its own, speculators on its path: it converts and opens our drafter, and writes a dump.

Usage: speculators_judge.py FOLDER AUX_LAYER ... It reads ours/ (a drafter), target/, exported/ (features) and
row.safetensors (ids [T], aux [T, A H], states [T, A + 1, H]) there, and writes converted/, residual/ and, of a plain
drafter, trained/ (drafters: see `main` and `trained_by_default`), dump/ (features) and found.safetensors.
"""

import copy
import sys
from pathlib import Path

import torch
from hs_connectors.fp8_utils import quantize_tensor_to_fp8
from safetensors.torch import load_file, save_file
from speculators.convert.eagle.eagle3_converter import Eagle3Converter
from speculators.losses.eager import kl_div_loss
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import ArrowDataset, CollateFn
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution


def main(folder: Path, aux_layers: list[int]) -> None:
    row, found = load_file(folder / "row.safetensors"), {}
    for name, norm_before_residual in (("residual", True), ("converted", False)):
        Eagle3Converter().convert(
            folder / "ours", folder / name, str(folder / "target"), validate=False,
            norm_before_residual=norm_before_residual, eagle_aux_hidden_state_layer_ids=aux_layers,
        )  # fmt: skip
        add_what_is_left_out(folder / "ours", folder / name)
        config = Eagle3SpeculatorConfig.from_pretrained(folder / name)
        config.transformer_layer_config._attn_implementation = "eager"
        model = Eagle3DraftModel.from_pretrained(folder / name, config=config).float().eval()
        # The drafter has no embedding of its own. speculators takes the target's where its own holds NaN, but what
        # transformers leaves there is memory as it was: once in eight runs it held no NaN, and was used as it stood.
        model.embed_tokens.weight.data.copy_(row["embed"])
        found[f"{name}.logits"] = logits(model, row)
    found |= {"d2t": model.d2t.clone(), "target_layer_ids": torch.tensor(model.target_layer_ids)}
    if not model.config.fc_norm:  # which shuts out norm_before_fc
        found["trained.logits"] = logits(trained_by_default(folder / "trained", model), row)
    found |= trained_on(folder / "exported", model)
    (folder / "dump").mkdir()
    save_file({"token_ids": row["ids"], "hidden_states": row["states"]}, folder / "dump" / "hs_0.safetensors")
    states, scales = quantize_tensor_to_fp8(row["states"])
    save_file(
        {"token_ids": row["ids"], "hidden_states": states, "hidden_states_scales": scales},
        folder / "dump" / "hs_1.safetensors",
    )
    save_file(found, folder / "found.safetensors")


def add_what_is_left_out(ours: Path, converted: Path) -> None:
    """The converter of speculators 0.9.0 writes `fc_norm` into the config, and drops its weights: the class that it
    loads them into does not have them."""
    theirs, tensors = (load_file(folder / "model.safetensors") for folder in (converted, ours))
    norms = {name: tensor for name, tensor in tensors.items() if name.startswith("fc_norm.")}
    assert not norms.keys() & theirs.keys(), "the converter keeps them now: docs/comparison.md says that it does not"
    save_file(theirs | norms, converted / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def logits(model: Eagle3DraftModel, row: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits of the first two steps of a row [2, T, W]; the second is fed what the first put out, and the next id."""
    seen, T = [], len(row["ids"])
    hook = model.lm_head.register_forward_hook(lambda _, __, logits: seen.append(logits[0].clone()))
    model(row["aux"][None], row["ids"][None], document_ids=torch.zeros(1, T, dtype=torch.long), ttt_steps=2)
    hook.remove()
    return torch.stack(seen)


@torch.no_grad()
def trained_by_default(folder: Path, model: Eagle3DraftModel) -> Eagle3DraftModel:
    """Saves a drafter of the same weights with the options that `speculators train` turns on where nothing is said."""
    config = copy.deepcopy(model.config)
    config.norm_before_residual = config.norm_before_fc = config.norm_output = True
    theirs = Eagle3DraftModel(config).float().eval()
    assert theirs.load_state_dict(model.state_dict(), strict=False).missing_keys == ["input_norm.weight"]
    theirs.input_norm.weight.uniform_(0.5, 2, generator=torch.Generator().manual_seed(2))
    theirs.save_pretrained(folder)
    return theirs


@torch.no_grad()
def trained_on(folder: Path, model: Eagle3DraftModel) -> dict[str, torch.Tensor]:
    """What its training makes of a folder of features: rows packed as it packs them, its teacher, its loss; the loss
    also with other states where the mask is not set, and where it is; its draft vocabulary of the 5 commonest ids."""
    model.load_verifier_weights()
    kept = {"max_len": 64, "hidden_states_dtype": torch.float32}
    dataset = ArrowDataset(datapath=folder, on_missing="raise", **kept)
    aux = dataset[0]["hidden_states"].shape[1] // model.hidden_size
    collate = CollateFn(64, model.hidden_size, aux, torch.float32, preprocess=shift_batch)
    batch = collate([dataset[i] for i in range(len(dataset))])
    errors, last, mask = batch.pop("error_records"), batch["verifier_last_hidden_states"], batch["loss_mask"].bool()
    assert not errors
    noise = torch.randn(last.shape, generator=torch.Generator().manual_seed(1)) * 9
    found = {f"train.{name}": tensor.clone() for name, tensor in batch.items()}
    found["train.teacher"] = model.verifier_norm(last)
    told = {"ttt_steps": 2, "loss_config": {"kl_div": (kl_div_loss, 1.0)}}  # the fused losses need a GPU
    for name, changed in (("loss", mask & ~mask), ("loss_untrained_changed", ~mask), ("loss_trained_changed", mask)):
        states = torch.where(changed[..., None], noise, last)
        found[f"train.{name}"] = model(**{**batch, "verifier_last_hidden_states": states}, **told)[1].clone()
    counts = torch.load(folder / "token_freq.pt", weights_only=True)
    found["train.d2t"], _ = build_vocab_mappings_from_distribution(counts, 5, model.t2d.shape[0])
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(layer) for layer in sys.argv[2:]])
