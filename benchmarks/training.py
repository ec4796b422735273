"""Training throughput at SmolLM2-135M's shapes, against the bare matrix products of the same training step, and against
the usual implementation (benchmarks/usual.py).

The floor is measured, not computed: the matrix products of one step are recorded as they are dispatched, then run
alone: same shapes, same dtype, same order. Memory is what tensors hold at their most during a step, gradients
included, weights and optimizer state not. Usage: python -m benchmarks.training [--ttt-steps 7] [--rows agent]
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.live_bytes import LiveBytes
from benchmarks.results import Result, add_json_option, save
from benchmarks.rows import HIDDEN, KINDS, LAYERS, VOCAB, row
from benchmarks.usual import PaddedBatch, UsualTraining
from eagle3lab.draft.config import DraftConfig
from eagle3lab.draft.model import Eagle3Draft
from eagle3lab.draft.recipe import Recipe
from eagle3lab.draft.train import Trainer
from eagle3lab.draft.vocab import VocabMap
from eagle3lab.features.precision import DTYPES, resolve_dtype

USUAL_ROWS = {"chat": 8, "agent": 2}  # rows of a batch of the usual implementation: what it has memory for
BATCH_TOKENS = {"chat": 2048, "agent": 8192}  # of ours
POOL = 200  # rows that the first batch is chosen from


class RecordProducts(TorchDispatchMode):
    """Notes sizes, strides and dtype of every two-dimensional matrix product."""

    def __init__(self):
        super().__init__()
        self.products = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.mm.default:
            self.products.append([(tuple(a.shape), a.stride(), a.dtype) for a in args[:2]])
        return function(*args, **(kwargs or {}))


def operand(shape, stride, dtype):
    """A random matrix laid out as the recorded one was."""
    matrix = torch.randn(shape).to(dtype)
    transposed = stride[0] < stride[1]
    return matrix.T.contiguous().T if transposed else matrix


def best_seconds(function, repeats: int) -> float:
    """Shortest of several runs: the machine is shared, and noise only adds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_bytes(function) -> int:
    """The most that the tensors made by a call hold at one time."""
    with LiveBytes() as memory:
        function()
    return memory.peak


def draft_config(draft_vocab_size: int) -> DraftConfig:
    """A drafter for SmolLM2-135M."""
    return DraftConfig(
        hidden_size=HIDDEN, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3, head_dim=64,
        vocab_size=VOCAB, draft_vocab_size=draft_vocab_size, target_hidden_size=HIDDEN, aux_layers=(2, 15, 27),
        target_num_layers=LAYERS, fc_norm=True, norm_output=True,
    )  # fmt: skip


class OurStep:
    """The first optimizer step of a training on POOL rows, as often as it is called; `tokens` of its rows."""

    def __init__(self, recipe: Recipe, draft_vocab_size: int, embedding: torch.Tensor, folder: Path, kind: str):
        rows = {f"r{i}": row(i, draft_vocab_size, kind) for i in range(POOL)}
        lengths = {key: r.input_ids_T.numel() for key, r in rows.items()}
        draft = Eagle3Draft(draft_config(draft_vocab_size), embedding, torch.arange(draft_vocab_size))
        self._trainer = Trainer(draft, lengths, rows.__getitem__, embedding, recipe, folder)
        self._step = self._trainer.plan[0]
        self.tokens = sum(lengths[row_id] for micro_batch in self._step for row_id in micro_batch)

    def __call__(self):
        return self._trainer._optimize(self._trainer.read_step(self._step), measure=False)


def measure(recipe: Recipe, draft_vocab_size: int, repeats: int, kind: str) -> dict:
    """Tokens a second (of the rows, prompts included) of one optimizer step, of its matrix products alone, and of the
    usual implementation on USUAL_ROWS of the same kind as they come; bytes a token of both implementations."""
    embedding = torch.randn(VOCAB, HIDDEN) * 0.1  # logits of a usual size
    target_ids = torch.arange(draft_vocab_size)
    with TemporaryDirectory() as folder:
        one_step = OurStep(recipe, draft_vocab_size, embedding, Path(folder), kind)
        one_step()  # warm-up: allocator, first optimizer state
        recorder = RecordProducts()
        with recorder:
            one_step()
        operands = [[operand(*one) for one in product] for product in recorder.products]

        def products_alone():
            for a, b in operands:
                torch.mm(a, b)

        products_alone()
        draft_id_V = VocabMap(target_ids, VOCAB).draft_ids()
        draft = Eagle3Draft(draft_config(draft_vocab_size), embedding, target_ids)
        usual = UsualTraining(draft, embedding, draft_id_V, recipe)
        some_rows = [row(i, draft_vocab_size, kind) for i in range(USUAL_ROWS[kind])]

        def usual_step():
            usual.step(PaddedBatch.of(some_rows, recipe.ttt_steps, recipe.loss_mask_kind))

        usual_step()
        rounds = [[best_seconds(one, 1) for one in (one_step, products_alone, usual_step)] for _ in range(repeats)]
        peaks = [peak_bytes(one) for one in (one_step, usual_step)]
    step_seconds, floor_seconds, usual_seconds = (min(column) for column in zip(*rounds, strict=True))
    usual_tokens = sum(one.input_ids_T.numel() for one in some_rows)
    flops = sum(2 * a[0][0] * a[0][1] * b[0][1] for a, b in recorder.products)
    return {
        "tokens_per_second": one_step.tokens / step_seconds,
        "floor_tokens_per_second": one_step.tokens / floor_seconds,
        "usual_tokens_per_second": usual_tokens / usual_seconds,
        "floor_gflops": flops / floor_seconds / 1e9,
        "bytes_per_token": peaks[0] / one_step.tokens,
        "usual_bytes_per_token": peaks[1] / usual_tokens,
    }


def main() -> None:
    """Prints one row per number of TTT steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ttt-steps", type=int, nargs="+", default=[3, 7])
    parser.add_argument("--draft-vocab-size", type=int, default=8192)
    parser.add_argument("--rows", choices=list(KINDS), default="chat", help="what the random rows look like")
    parser.add_argument("--batch-tokens", type=int, help=f"default: {BATCH_TOKENS}")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="of the products, of both implementations")
    parser.add_argument("--repeats", type=int, default=7)
    add_json_option(parser)
    arguments = parser.parse_args()
    kind, results = arguments.rows, []
    batch_tokens = arguments.batch_tokens or BATCH_TOKENS[kind]
    machine = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    print(f"training step, {kind} rows, SmolLM2-135M shapes, {resolve_dtype(arguments.dtype)}, {machine}")
    for steps in arguments.ttt_steps:
        recipe = Recipe(ttt_steps=steps, batch_tokens=batch_tokens, compute_dtype=arguments.dtype)
        found = measure(recipe, arguments.draft_vocab_size, arguments.repeats, kind)
        ours, floor, usual = (found[f"{name}tokens_per_second"] for name in ("", "floor_", "usual_"))
        print(
            f"{steps} TTT steps, W {arguments.draft_vocab_size}: {ours:.0f} tokens/s, {ours / floor:.0%} of the bare "
            f"matrix products ({floor:.0f} tokens/s at {found['floor_gflops']:.0f} GFLOP/s), {ours / usual:.1f} times "
            f"the usual implementation ({usual:.0f} tokens/s, {USUAL_ROWS[kind]} rows at a time)"
        )
        ours_kib, usual_kib = (found[f"{name}bytes_per_token"] / 2**10 for name in ("", "usual_"))
        print(f"  at its most {ours_kib:,.0f} KiB a token, the usual implementation {usual_kib:,.0f}")
        vocabulary = f"W {arguments.draft_vocab_size}, {recipe.compute_dtype}"
        setting = f"SmolLM2-135M shapes, {kind} rows, {steps} TTT steps, {vocabulary}"
        value = f"{ours:,.0f} tokens/s"
        products = f"{floor:,.0f} tokens/s, the step's bare matrix products"
        padded = f"{usual:,.0f} tokens/s, padded by {USUAL_ROWS[kind]}, full masks, all logits"
        results.append(Result("training", setting, value, products, ours / floor))
        results.append(Result("training", setting, value, padded, ours / usual))
        memory = f"{ours_kib:,.0f} KiB a token", f"{usual_kib:,.0f} KiB a token, the usual implementation"
        results.append(Result("training memory", setting, *memory, ours_kib / usual_kib, "less"))
    save(arguments.json, results)


if __name__ == "__main__":
    main()
