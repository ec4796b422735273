"""Ways to plant a fault in a copy of the good world: each is given the world, and returns changes of the doctor's
subject, or None.

Shapes: T tokens, A aux layers, H hidden, V vocabulary.
"""

import json
import shutil
import zlib

import torch
from safetensors.torch import load_file, save_file

from eagle3lab.analysis.parity import Cause, Parity
from eagle3lab.analysis.suspects import REMEDIES
from eagle3lab.data.corpus import read_corpus, write_corpus
from eagle3lab.draft.target_weights import read_target_weights
from eagle3lab.draft.vocab import VocabMap
from eagle3lab.features.layout import index_line
from eagle3lab.features.shardfile import ShardFile, checksum, write_blocks
from tests.data.conftest import CHATML, _make_tokenizer


def config(file, **changes):
    return lambda w: (w.edit_json(file, **changes), None)[1]


def corpus(change):
    return lambda w: (w.edit_corpus(change), None)[1]


def features(change=lambda a, b, ids: (a, b, ids), **more):
    return lambda w: (w.edit_features(change, **more), None)[1]


def tensors(change):
    return lambda w: (w.edit_tensors(change), None)[1]


def subject(**given):
    return lambda w: {name: value(w) if callable(value) else value for name, value in given.items()}


def template(text):
    def plant(w):
        (w.target / "chat_template.jinja").write_text(text)

    return plant


def without(name):
    def plant(w):
        path = w.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return plant


def nan_in_target(w):
    path = w.target / "model.safetensors"
    content = load_file(path)
    content["lm_head.weight"][3, 1] = float("nan")
    save_file(content, path, metadata={"format": "pt"})


def cut_shard(w):
    shard = sorted(w.features.glob("shard-*"))[0]
    shard.write_bytes(shard.read_bytes()[:-7])


def flipped_byte(w):
    shard = sorted(w.features.glob("shard-*"))[0]
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)


def stale_corpus(w):
    """The corpus was written again with another answer: the features are still of the old one."""
    rows = [row for row in read_corpus(w.corpus)]
    rows[0]["input_ids"] = [*rows[0]["input_ids"][:-1], 5]
    write_corpus(w.corpus, rows)


def other_map(w):
    VocabMap(torch.arange(147), 328).save(w.vocab_map)


def map_that_disagrees(w):
    content = load_file(w.vocab_map)
    content["d2t"][-1] += 1
    save_file(content, w.vocab_map)


def quantised(w):
    """The target's weights rounded to a few steps, after the features were made."""
    path = w.target / "model.safetensors"
    rounded = {name: (t * 4).round() / 4 if t.dim() == 2 else t for name, t in load_file(path).items()}
    save_file(rounded, path, metadata={"format": "pt"})


def too_large_map(w):
    VocabMap(torch.arange(328), 328).save(w.vocab_map)


def set_row(**changes):
    """Changes every third row; a function gets the row."""

    def change(row, number):
        if number % 3:
            return row
        return row | {name: value(row) if callable(value) else value for name, value in changes.items()}

    return change


def blanked(row, number):
    """An answer that begins with an empty block of thoughts."""
    ids = _make_tokenizer()("<think></think>Yes.", add_special_tokens=False)["input_ids"]
    start = row["loss_spans"][0][0]
    return row | {"input_ids": [*row["input_ids"][:start], *ids], "loss_spans": [[start, start + len(ids)]]}


def one_prompt_for_all(w):
    prompt = [1, 2, 3]

    def change(row, number):
        answer = row["input_ids"][row["loss_spans"][0][0] :]
        return row | {"input_ids": [*prompt, *answer], "loss_spans": [[3, 3 + len(answer)]]}

    w.edit_corpus(change)


def late(aux_TAH, last_TH, ids):
    return aux_TAH.roll(1, 0), last_TH, ids


def zeros_at_the_end(aux_TAH, last_TH, ids):
    aux_TAH[-3:] = 0
    return aux_TAH, last_TH, ids


def padded_left(aux_TAH, last_TH, ids):
    return aux_TAH, last_TH, [0] * 4 + ids[4:]


def padded_right(aux_TAH, last_TH, ids):
    return aux_TAH, last_TH, ids[:-9] + [0] * 9


def other_text(aux_TAH, last_TH, ids):
    return aux_TAH, last_TH, [(7 * i + 3) % 300 for i in ids]


def changed_index(w):
    path = w.features / "index-00.jsonl"
    path.write_text(path.read_text().replace('"train"', '"heldout"', 1))


def nan_after_the_fact(w):
    """NaN in a stored state: the writer refuses one, so the bytes are changed and the checksums made to agree."""
    manifest = json.loads((w.features / "store.json").read_text())
    entry = manifest["shards"][0]
    path = w.features / entry["name"]
    shard = ShardFile(path)
    index = w.features / "index-00.jsonl"
    lines, blocks = [json.loads(line) for line in index.read_text().splitlines()], []
    own = [line for line in lines if line["shard"] == entry["name"]]
    for line in own:
        block = shard.read(["input_ids", "aux"], line["offset"], line["offset"] + line["n"])
        block |= shard.read(["last"], line["last_offset"], line["last_offset"] + line["n_last"])
        block["aux"][2, 0, 1] = float("nan")
        line["crc32"] = checksum(block)
        blocks.append(block)
    write_blocks(path, blocks)
    index.write_text("".join(map(index_line, lines)))
    for name in ("store.json", "part-00.json"):
        manifest = json.loads((w.features / name).read_text())
        manifest["shards"][0]["index_crc32"] = zlib.crc32("".join(map(index_line, own)).encode())
        (w.features / name).write_text(json.dumps(manifest))


def head_permuted(t):
    return t | {"lm_head.weight": t["lm_head.weight"][torch.randperm(147, generator=torch.Generator().manual_seed(0))]}


def head_one_off(t):
    return t | {"lm_head.weight": t["lm_head.weight"].roll(1, 0)}


def head_of_the_target(w):
    head_VH, ids = read_target_weights(w.target).head_VH, VocabMap.load(w.vocab_map).target_ids_W
    w.edit_tensors(lambda t: t | {"lm_head.weight": head_VH[ids]})


def absolute(t):
    return t | {"d2t": t["d2t"] + torch.arange(147)}


def renamed(t):
    return {name.replace("midlayer.mlp", "decoder.mlp"): tensor for name, tensor in t.items()}


def random_embedding(t):
    return t | {"embed_tokens.weight": torch.randn(328, 32, generator=torch.Generator().manual_seed(0))}


def differing_parity(cause, differing=200):
    found = Cause(cause, cause, 0.9, "", REMEDIES[cause])
    return Parity(500, differing, 24, (), (), (), (found,))


def benchmark(**changes):
    def plant(w):
        content = json.loads(w.benchmark.read_text())
        content["rows"][1] |= changes
        w.benchmark.write_text(json.dumps(content))

    return plant


def other_drafter(w):
    """The server runs an older export."""
    older = w.copy(w.root.parent / "older")
    older.edit_tensors(lambda t: t | {"norm.weight": t["norm.weight"] * 1.1})
    return {"server": w.info(speculative_draft_model_path=str(older.draft))}


def other_target(w):
    other = w.copy(w.root.parent / "other")
    other.edit_json("target/config.json", rms_norm_eps=1e-3)
    return {"server": w.info(model_path=str(other.target))}


def other_template(w):
    other = w.copy(w.root.parent / "other")
    (other.target / "chat_template.jinja").write_text("You are kind. " + CHATML)
    return {"server": w.info(tokenizer_path=str(other.target))}


def system_prompt_of_its_own(w):
    (w.target / "chat_template.jinja").write_text("You are kind. " + CHATML)


def trained_without_norm_output(world):
    """The training says that it had none; config.json has the flag."""
    told = json.loads((world.root / "draft/training.json").read_text())["draft_config"]
    world.edit_json("draft/training.json", draft_config=told | {"norm_output": False})
