"""Training throughput against SpecForge's own modules on this CPU, at SmolLM2-135M's shapes, in one process.

SpecForge as it stands in its package (pinned in tests/interop/packages.txt, installed into a temporary folder): its
drafter in bfloat16, its TTT model and strategy, its optimizer over float32 masters, batches of 8 padded rows, the
teacher's logits over the whole vocabulary. Its fused loss is a Triton kernel for GPUs; the reference that stands beside
it in the same file takes its place. Usage: python -m benchmarks.specforge [--ttt-steps 7]
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
from benchmarks.training import HIDDEN, USUAL_ROWS, VOCAB, OurStep, best_seconds, row
from eagle3lab.draft.recipe import Recipe

PACKAGES = Path(__file__).parents[1] / "tests" / "interop" / "packages.txt"


def install(folder: Path) -> None:
    """SpecForge, speculators and what they import, but for torch and transformers, into a folder of their own."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--require-hashes", "--target", str(folder), "-r", str(PACKAGES)], check=True)


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
    """One optimizer step of SpecForge on 8 rows, as often as it is called; `tokens` of its rows, padding apart."""

    def __init__(self, ttt_steps: int, draft_vocab_size: int):
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
        draft = LlamaForCausalLMEagle3(config).to(torch.bfloat16)
        draft.t2d.copy_(torch.arange(VOCAB) < draft_vocab_size)
        draft.embed_tokens.weight.requires_grad_(False)
        head = TargetHead.__new__(TargetHead)  # its own constructor reads a model's folder
        torch.nn.Module.__init__(head)
        head.fc = torch.nn.Linear(HIDDEN, VOCAB, bias=False).to(torch.bfloat16).requires_grad_(False)
        model = eagle3.OnlineEagle3Model(draft, length=ttt_steps, attention_backend="sdpa")
        self._strategy, self._optimizer = Eagle3TrainStrategy(model, target_head=head), BF16Optimizer(model, lr=1e-4)
        rows = [row(i, draft_vocab_size) for i in range(USUAL_ROWS)]
        self._batch = types.SimpleNamespace(tensors=padded(rows), metadata={"target_repr": "hidden_state"})
        self._strategy.validate_batch(self._batch)
        self.tokens = sum(one.input_ids_T.numel() for one in rows)

    def __call__(self) -> float:
        loss = self._strategy.forward_loss(self._batch).loss
        loss.backward()
        self._optimizer.step()
        return loss.item()


def padded(rows: list) -> dict[str, torch.Tensor]:
    """Rows of benchmarks.training as SpecForge's collator hands them on."""
    last = [
        one.last_MH.new_zeros(len(one.input_ids_T), HIDDEN).index_copy(0, one.last_slots, one.last_MH) for one in rows
    ]
    parts = {
        "input_ids": [one.input_ids_T for one in rows],
        "attention_mask": [torch.ones_like(one.input_ids_T) for one in rows],
        "loss_mask": [one.loss_mask_T.long() for one in rows],
        "hidden_state": [one.aux_TAH.flatten(1) for one in rows],
        "target": last,
    }
    return {name: pad_sequence(part, batch_first=True) for name, part in parts.items()}


def main() -> None:
    """Prints one line a number of TTT steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ttt-steps", type=int, nargs="+", default=[7])
    parser.add_argument("--draft-vocab-size", type=int, default=8192)
    parser.add_argument("--batch-tokens", type=int, default=2048, help="of ours")
    parser.add_argument("--repeats", type=int, default=5)
    add_json_option(parser)
    given = parser.parse_args()
    results, W = [], given.draft_vocab_size
    with TemporaryDirectory() as folder:
        install(Path(folder) / "packages")
        sys.path.insert(0, str(Path(folder) / "packages"))
        for steps in given.ttt_steps:
            recipe = Recipe(ttt_steps=steps, batch_tokens=given.batch_tokens)
            ours = OurStep(recipe, W, torch.randn(VOCAB, HIDDEN) * 0.1, Path(folder) / f"ours-{steps}")
            theirs = SpecForgeStep(steps, W)
            ours(), theirs()  # warm-up: allocator, optimizer state, what theirs compiles
            rounds = [(best_seconds(ours, 1), best_seconds(theirs, 1)) for _ in range(given.repeats)]
            mine, other = (
                one.tokens / min(times) for one, times in zip((ours, theirs), zip(*rounds, strict=True), strict=True)
            )
            setting = f"SmolLM2-135M shapes, {steps} TTT steps, W {W}, bfloat16"
            baseline = f"{other:,.0f} tokens/s, SpecForge's own modules, {USUAL_ROWS} rows at a time"
            results.append(Result("training", setting, f"{mine:,.0f} tokens/s", baseline, mine / other))
            print(f"{setting}: {mine:,.0f} tokens/s, {mine / other:.1f} times {baseline}", flush=True)
    save(given.json, results)


if __name__ == "__main__":
    main()
