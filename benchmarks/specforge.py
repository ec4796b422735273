"""Training throughput against SpecForge's own modules on this CPU, at SmolLM2-135M's shapes, in one process.

SpecForge as it stands in its package (pinned in tests/interop/packages.txt, installed into a temporary folder): its
drafter, its TTT model and strategy, its optimizer over float32 masters, batches of padded rows, the
teacher's logits over the whole vocabulary. Its fused loss is a Triton kernel for GPUs; the reference that stands beside
it in the same file takes its place. Usage: python -m benchmarks.specforge [--ttt-steps 7] [--rows agent]
"""

import argparse
import importlib
import importlib.machinery
import subprocess
import sys
import types
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

from benchmarks.results import Result, add_json_option, save
from benchmarks.rows import HIDDEN, KINDS, VOCAB, row
from benchmarks.training import BATCH_TOKENS, USUAL_ROWS, OurStep, best_seconds
from eagle3lab.draft.recipe import Recipe
from eagle3lab.features.precision import DTYPES, resolve_dtype

PACKAGES = Path(__file__).parents[1] / "tests" / "interop" / "packages.txt"


def install(folder: Path, packages: Path = PACKAGES) -> None:
    """Pinned packages (SpecForge, speculators and what they import but for torch and transformers) into a folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--require-hashes", "--target", str(folder), "-r", str(packages)], check=True)


def without_triton() -> None:
    """Imports SpecForge's loss where there is no Triton: its kernels are defined, and never run."""
    importlib.import_module("torch._inductor.compile_fx")  # torch and transformers look for Triton once,
    importlib.import_module("transformers.models.llama.modeling_llama")  # and must not find what stands in for it
    names = ("triton", "triton.language")
    for name in names:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.jit, module.constexpr = (lambda function: function), int
        sys.modules[name] = module
    sys.modules["triton"].language = sys.modules["triton.language"]
    try:
        import specforge.core.loss  # noqa: F401
    finally:
        for name in names:
            del sys.modules[name]


class SpecForgeStep:
    """One optimizer step of SpecForge on USUAL_ROWS, as often as it is called; `tokens` of its rows, padding apart."""

    def __init__(self, ttt_steps: int, draft_vocab_size: int, kind: str, dtype: torch.dtype):
        without_triton()
        from specforge.algorithms.eagle3 import model as eagle3
        from specforge.core.loss import _compute_loss
        from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
        from specforge.modeling.target.target_head import TargetHead
        from specforge.optimizer import BF16Optimizer
        from specforge.training.strategies.base import Eagle3TrainStrategy

        eagle3.LogSoftmaxLoss = types.SimpleNamespace(apply=_compute_loss)
        config = transformers.LlamaConfig(
            hidden_size=HIDDEN, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3, head_dim=64,
            vocab_size=VOCAB, num_hidden_layers=1, max_position_embeddings=2048,
        )  # fmt: skip
        config.draft_vocab_size, config.target_hidden_size = draft_vocab_size, HIDDEN
        draft = LlamaForCausalLMEagle3(config).to(dtype)
        draft.t2d.copy_(torch.arange(VOCAB) < draft_vocab_size)
        draft.embed_tokens.weight.requires_grad_(False)
        head = TargetHead.__new__(TargetHead)  # its own constructor reads a model's folder
        torch.nn.Module.__init__(head)
        head.fc = torch.nn.Linear(HIDDEN, VOCAB, bias=False).to(dtype).requires_grad_(False)
        model = eagle3.OnlineEagle3Model(draft, length=ttt_steps, attention_backend="sdpa")
        self._strategy, self._optimizer = Eagle3TrainStrategy(model, target_head=head), BF16Optimizer(model, lr=1e-4)
        rows = [row(i, draft_vocab_size, kind) for i in range(USUAL_ROWS[kind])]
        self._batch = types.SimpleNamespace(tensors=padded(rows, dtype), metadata={"target_repr": "hidden_state"})
        self._strategy.validate_batch(self._batch)
        self.tokens = sum(one.input_ids_T.numel() for one in rows)

    def __call__(self) -> float:
        loss = self._strategy.forward_loss(self._batch).loss
        loss.backward()
        self._optimizer.step()
        return loss.item()


def padded(rows: list, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Rows of benchmarks.rows as SpecForge's collator hands them on."""
    last = [
        one.last_MH.new_zeros(len(one.input_ids_T), HIDDEN).index_copy(0, one.last_slots, one.last_MH) for one in rows
    ]
    parts = {
        "input_ids": [one.input_ids_T for one in rows],
        "attention_mask": [torch.ones_like(one.input_ids_T) for one in rows],
        "loss_mask": [one.loss_mask_T.long() for one in rows],
        "hidden_state": [one.aux_TAH.flatten(1).to(dtype) for one in rows],
        "target": [one.to(dtype) for one in last],
    }
    return {name: pad_sequence(part, batch_first=True) for name, part in parts.items()}


def main() -> None:
    """Prints one line a number of TTT steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ttt-steps", type=int, nargs="+", default=[7])
    parser.add_argument("--draft-vocab-size", type=int, default=8192)
    parser.add_argument("--rows", choices=list(KINDS), default="chat", help="what the random rows look like")
    parser.add_argument("--batch-tokens", type=int, help=f"of ours; default: {BATCH_TOKENS}")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="of both; theirs is always bfloat16 on GPUs")
    parser.add_argument("--repeats", type=int, default=5)
    add_json_option(parser)
    given = parser.parse_args()
    results, W, kind, dtype = [], given.draft_vocab_size, given.rows, resolve_dtype(given.dtype)
    with TemporaryDirectory() as folder:
        install(Path(folder) / "packages")
        sys.path.insert(0, str(Path(folder) / "packages"))
        for steps in given.ttt_steps:
            recipe = Recipe(ttt_steps=steps, batch_tokens=given.batch_tokens or BATCH_TOKENS[kind], compute_dtype=dtype)
            ours = OurStep(recipe, W, torch.randn(VOCAB, HIDDEN) * 0.1, Path(folder) / f"ours-{steps}", kind)
            theirs = SpecForgeStep(steps, W, kind, getattr(torch, dtype))
            ours(), theirs()  # warm-up: allocator, optimizer state, what theirs compiles
            rounds = [(best_seconds(ours, 1), best_seconds(theirs, 1)) for _ in range(given.repeats)]
            mine, other = (
                one.tokens / min(times) for one, times in zip((ours, theirs), zip(*rounds, strict=True), strict=True)
            )
            setting = f"SmolLM2-135M shapes, {kind} rows, {steps} TTT steps, W {W}, {dtype}"
            baseline = f"{other:,.0f} tokens/s, SpecForge's own modules, {USUAL_ROWS[kind]} rows at a time"
            results.append(Result("training", setting, f"{mine:,.0f} tokens/s", baseline, mine / other))
            print(f"{setting}: {mine:,.0f} tokens/s, {mine / other:.1f} times {baseline}", flush=True)
    save(given.json, results)


if __name__ == "__main__":
    main()
