"""SGLang's side of the capture: the plugin that hands every prefill's states to the writer.

SGLang finds `register` through the entry point group `sglang.srt.plugins` in each of its processes. It does
nothing unless EAGLE3LAB_CAPTURE_FOLDER names a folder. Only the process that holds whole states writes: rank 0 of
its tensor-parallel group (one per data-parallel rank).

Needs in the server: --enable-return-aux-hidden-states --speculative-algorithm EAGLE3, --disable-radix-cache, no CUDA
graphs for prefill (their replays call no hooks). Seen with SGLang 0.5.23.

Shapes: N tokens of a pass, H hidden, E = A * H for A aux layers.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from eagle3lab.engines.sglang.capture_files import FOLDER_VARIABLE
from eagle3lab.engines.sglang.capture_writer import CaptureWriter, Pass

LOGITS_PROCESSOR = "sglang.srt.layers.logits_processor.LogitsProcessor"
PREFILL_MODES = ("EXTEND", "MIXED")  # names of SGLang's ForwardMode that bring prompt tokens


def register() -> None:
    """Called by SGLang once in every process, before a model is loaded."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        tap = Tap(Path(folder))
        HookRegistry.register(f"{LOGITS_PROCESSOR}.__init__", tap.made, HookType.AFTER)
        HookRegistry.register(f"{LOGITS_PROCESSOR}.forward", tap.passed, HookType.AFTER)


class Tap:
    """The hooks. A hook never raises: the server must not go down with the capture."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.writer: CaptureWriter | None = None

    def made(self, _none, _processor, *_args, **_kwargs) -> None:
        """After the model's LogitsProcessor was made: starts the writer, before the server takes requests."""
        from sglang.srt.runtime_context import get_parallel

        if self.writer is None and get_parallel().attn_tp_rank == 0:
            self.writer = CaptureWriter(self._folder, parent_pid=os.getppid())
            self.writer.start()

    def passed(self, result, _processor, *args, **kwargs) -> None:
        """After a forward pass: `result` holds aux states [N, E] and last states [N, H] of all its tokens."""
        if self.writer is not None and self.writer.capturing:
            try:
                item = to_host(result, kwargs["logits_metadata"] if "logits_metadata" in kwargs else args[3])
                if item is not None:
                    self.writer.put(item)
            except Exception as error:
                self.writer.fail(f"{type(error).__name__}: {error}")


def to_host(result, batch) -> Pass | None:
    """A prefill's states, copied to the host; None for a pass without prompt tokens. `batch` is SGLang's
    ForwardBatch, `result` its LogitsProcessorOutput.

    Raises RuntimeError when the server was not started for capture.
    """
    if batch.forward_mode.name not in PREFILL_MODES:
        return None
    if getattr(batch, "rids", None) is None:
        raise RuntimeError(
            "a prefill came without request ids; start the server with --cuda-graph-backend-prefill disabled"
        )
    if not batch.rids:  # a rank without requests that keeps pace with the others
        return None
    if result.hidden_states is None or result.last_hidden_states is None:
        raise RuntimeError(
            "the server keeps no aux states; start it with --speculative-algorithm EAGLE3 "
            "--enable-return-aux-hidden-states"
        )
    lengths = [int(length) for length in batch.extend_seq_lens_cpu]
    starts = [int(start) for start in batch.extend_prefix_lens_cpu]
    tensors = [_copy(t[: sum(lengths)]) for t in (batch.input_ids, result.hidden_states, result.last_hidden_states)]
    return Pass(list(batch.rids), starts, lengths, *tensors, *_copies_done(batch.input_ids.device))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory; from a GPU it is only queued on the current stream."""
    if tensor.device.type == "cpu":
        return tensor.detach().clone()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor.detach(), non_blocking=True)


def _copies_done(device: torch.device) -> tuple:
    if device.type == "cpu":
        return ()
    event = torch.get_device_module(device).Event()
    event.record()
    return (event.synchronize,)
