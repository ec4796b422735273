"""Everything the doctor looks at, small and good: a target with tokenizer, prompts, corpus, features, map, drafter,
a launch, a running server's account, a benchmark, a comparison. Tests copy it and plant one fault each."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3lab.analysis.doctor import Subject
from eagle3lab.analysis.parity import Parity
from eagle3lab.data.chat import render_prompt
from eagle3lab.data.corpus import corpus_summary, read_corpus, write_corpus
from eagle3lab.data.fingerprint import target_fingerprint
from eagle3lab.draft.aux_layers import default_aux_layers
from eagle3lab.draft.checkpoint import export_draft
from eagle3lab.draft.start import new_draft
from eagle3lab.draft.target_weights import read_target_weights
from eagle3lab.draft.vocab import build_vocab, count_tokens
from eagle3lab.engines.base import Request
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.sglang.attach import parse_server_info
from eagle3lab.engines.sglang.spec import ServerSpec
from eagle3lab.features.slots import spans_to_mask
from eagle3lab.features.store import FeatureWriter
from eagle3lab.workbench.files import append_jsonl

LAYERS, HIDDEN, CONTEXT, ANSWER = 8, 32, 128, 24
QUESTIONS = [f"{verb} {thing}?" for verb in ("How do I cook", "Where is", "What is", "Draw") for thing in
             ("rice", "the fox", "a lazy dog", "x", "f(x)", "日本")]  # fmt: skip


@dataclass(frozen=True)
class World:
    """The good artefacts. `copy` gives a world of one's own, to plant a fault in."""

    root: Path

    def __getattr__(self, name: str) -> Path:
        if name in ("target", "prepared", "features", "draft"):
            return self.root / name
        if name in ("corpus", "vocab_map", "benchmark"):
            ending = {"corpus": "parquet", "vocab_map": "safetensors", "benchmark": "json"}[name]
            return self.root / f"{name}.{ending}"
        raise AttributeError(name)

    def copy(self, root: Path) -> "World":
        shutil.copytree(self.root, root)
        return World(root)

    def engine(self) -> EmbeddedEngine:
        return EmbeddedEngine(self.target, aux_layers=default_aux_layers(LAYERS))

    def spec(self, **changes) -> ServerSpec:
        return ServerSpec(str(self.target), **{"draft": str(self.draft), "max_running_requests": 16, **changes})

    def info(self, accept_length: float | None = 2.0, **changes):
        answers = {
            "version": "0.5.23", "model_path": str(self.target), "tokenizer_path": str(self.target),
            "speculative_algorithm": "EAGLE3", "speculative_draft_model_path": str(self.draft),
            "speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4,
            "max_running_requests": 16, "context_length": CONTEXT, "device": "cuda", "dtype": "bfloat16",
            "internal_states": [{"avg_spec_accept_length": accept_length}],
        }  # fmt: skip
        model = {"model_path": (answers | changes)["model_path"], "architectures": ["LlamaForCausalLM"]}
        return parse_server_info("http://127.0.0.1:1", answers | changes, model)

    def subject(self, **changes) -> Subject:
        given = {
            "target": self.target, "prepared": self.prepared, "corpus": self.corpus, "features": self.features,
            "vocab_map": self.vocab_map, "draft": self.draft, "spec": self.spec(), "server": self.info(),
            "benchmark": self.benchmark, "parity": Parity(500, 0, 24, (), (), (), ()),
        }  # fmt: skip
        return Subject(**given | changes)

    # ---- edits --------------------------------------------------------------------------------------------

    def edit_json(self, name: str, **changes) -> "World":
        """Changes values of a JSON file below the root; None removes one."""
        path = self.root / name
        content = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
        return self

    def edit_corpus(self, change) -> "World":
        """Writes the corpus again, every row (dict, number) through `change`, without what `write_corpus` refuses."""
        import pyarrow.parquet as pq

        from eagle3lab.data.token_rows import batch_of

        rows = [change(dict(row), number) for number, row in enumerate(read_corpus(self.corpus))]
        metadata = pq.read_metadata(self.corpus).metadata
        batch = batch_of(rows)
        with pq.ParquetWriter(self.corpus, batch.schema) as writer:
            writer.write_batch(batch)
            writer.add_key_value_metadata({b"eagle3lab": metadata[b"eagle3lab"]})
        return self

    def edit_features(self, change=lambda aux_TAH, last_TH, ids: (aux_TAH, last_TH, ids), spans=None, layers=None):
        """Writes the store again from the engine's states, changed."""
        shutil.rmtree(self.features)
        write_features(self, change, spans, layers)
        return self

    def edit_tensors(self, change) -> "World":
        """Writes the drafter's tensors again: `change` gets and gives a dict."""
        from safetensors.torch import load_file, save_file

        path = self.draft / "model.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in change(load_file(path)).items()}, path)
        return self


def write_features(world: World, change=None, spans=None, layers=None) -> None:
    engine = world.engine()
    corpus = corpus_summary(world.corpus)["fingerprint"]
    fingerprint = {**target_fingerprint(world.target), "corpus": corpus, "dtype": "float32"}
    rows = {row["id"]: row for row in read_corpus(world.corpus)}
    writer = FeatureWriter(world.features, fingerprint, layers or engine.aux_layers, HIDDEN, shard_tokens=400)
    for one in engine.capture(((key, row["input_ids"]) for key, row in rows.items()), 512):
        aux_TAH, last_TH, ids = one.aux_TAH, one.last_TH, list(rows[one.id]["input_ids"])
        if change is not None:
            aux_TAH, last_TH, ids = change(aux_TAH.clone(), last_TH.clone(), ids)
        row = rows[one.id]
        trained = row["loss_spans"] if spans is None else spans(len(ids))
        writer.add(one.id, ids, trained, aux_TAH, last_TH, row["split"], row["set"])
    writer.close()


def build_world(root: Path, tokenizer) -> World:
    """Makes all of it; `tokenizer` is a byte-level one with a ChatML template."""
    world = World(root)
    tokenizer.save_pretrained(world.target)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(tokenizer), num_hidden_layers=LAYERS, hidden_size=HIDDEN, intermediate_size=64,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT, initializer_range=0.3,
            eos_token_id=tokenizer.eos_token_id, bos_token_id=None, tie_word_embeddings=False,
        )  # fmt: skip
        model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(world.target)
    engine = world.engine()

    prompts = []
    for number, question in enumerate(QUESTIONS):
        messages = [{"role": "user", "content": question}]
        prompts.append({"id": f"chat-{number}", "messages": messages, "prompt_ids": render_prompt(tokenizer, messages)})
        append_jsonl(world.prepared / "chat" / "prompts.jsonl", prompts[-1])
    requests = [Request(row["id"], row["prompt_ids"], ANSWER) for row in prompts]
    done = {one.id: one for one in engine.generate(requests, batch_size=8)}
    write_corpus(world.corpus, (_corpus_row(row, done[row["id"]], n) for n, row in enumerate(prompts)))
    write_features(world)

    train = [row for row in read_corpus(world.corpus, "train")]
    pairs = ((torch.as_tensor(r["input_ids"]), spans_to_mask(r["loss_spans"], len(r["input_ids"]))) for r in train)
    counts_V = count_tokens(pairs, len(tokenizer))
    vocab = build_vocab(counts_V, int((counts_V > 0).sum()))
    vocab.save(world.vocab_map)
    draft = new_draft(world.target, engine.aux_layers, vocab, read_target_weights(world.target), seed=0)
    with torch.no_grad():  # as after some training: like the target's head, and not equal to it
        noise = torch.randn(draft.lm_head.weight.shape, generator=torch.Generator().manual_seed(3))
        draft.lm_head.weight.add_(0.1 * noise)
    export_draft(draft, world.draft, {"trained_length": CONTEXT}, dtype=torch.float32)
    rows = [
        {"setting": "baseline", "accept_length": None, "break_even": None, "speedup": 1.0, "concurrency": 1},
        {"setting": "chain 3", "accept_length": 2.0, "break_even": 1.4, "speedup": 1.4, "concurrency": 1},
    ]
    world.benchmark.write_text(json.dumps({"rows": rows}))
    return world


def _corpus_row(prompt: dict, done, number: int) -> dict:
    start = len(prompt["prompt_ids"])
    return {
        "id": prompt["id"], "set": "chat", "split": "heldout" if number % 6 == 0 else "train", "origin": "target",
        "input_ids": [*prompt["prompt_ids"], *done.output_ids], "loss_spans": [[start, start + len(done.output_ids)]],
        "finish_reason": done.finish_reason,
    }  # fmt: skip
