"""Training of the drafter: a generator of metric rows that can be cut off anywhere and goes on.

Shapes: K TTT steps, V target vocabulary, H hidden.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3lab.draft import state
from eagle3lab.draft.alone import alone
from eagle3lab.draft.batch import TTTBatch, make_batch
from eagle3lab.draft.decode import simulated_commits
from eagle3lab.draft.diverged import stop_diverged
from eagle3lab.draft.order import training_plan
from eagle3lab.draft.recipe import Recipe, schedule
from eagle3lab.draft.sharded import ShardedStep
from eagle3lab.draft.step import OptimizerStep
from eagle3lab.draft.team import ALONE, Team
from eagle3lab.features.stream import read_ahead

AHEAD = 1  # optimizer steps whose rows are read while one is trained


@dataclass
class ReadStep:
    """This process's part of an optimizer step: the rows of its micro-batches by piece id, and those of any one where
    it has one less than other processes."""

    micro_batches: list[dict[str, object]]
    idle: dict[str, object] | None


class Trainer:
    """One training of one drafter.

    draft: float32 weights, changed in place. lengths: piece id -> tokens, and read_row: piece id -> what `make_batch`
    reads (rows.py makes both from a feature store). target_head_VH: the target's output matrix, whose rows of the draft
    vocabulary make the teacher. folder: checkpoints go there; an unfinished training of the same identity continues
    from its newest one. heldout: ids of rows to measure the accept length on. team: the processes that train together;
    all of them run this code, the first one writes. sharded: weights and moments are split over the team. ahead: the
    rows of so many optimizer steps are read in another thread while one is trained; 0 where reading is work for the
    same processor. shard_of: piece id -> the shard it is read from, for a recipe with window_tokens.

    Raises ValueError for more processes than micro-batches of a step and for window_tokens without shards, and
    StateError for a checkpoint of another training, or a damaged one.
    """

    def __init__(
        self,
        draft,
        lengths: Mapping[str, int],
        read_row,
        target_head_VH,
        recipe: Recipe,
        folder,
        identity=None,
        heldout: Sequence[str] = (),
        team: Team = ALONE,
        sharded: bool = False,
        ahead: int = AHEAD,
        shard_of: Callable[[str], str] | None = None,
    ):
        if team.size > recipe.accumulate:
            raise ValueError(
                f"{team.size} processes share the micro-batches of an optimizer step, but accumulate is "
                f"{recipe.accumulate}: set it to a multiple of {team.size}"
            )
        self.draft, self.read_row, self.recipe, self.folder = draft, read_row, recipe, Path(folder)
        self.heldout, self.team, self.ahead = list(heldout), team, ahead
        sizes = (recipe.batch_tokens, recipe.accumulate, recipe.epochs, recipe.seed)
        self.plan = training_plan(lengths, *sizes, shard_of, recipe.window_tokens)
        kind = ShardedStep if sharded and team.size > 1 else OptimizerStep
        self.optimizer_step = kind(draft, target_head_VH, recipe, team)
        self.identity = {
            "recipe": recipe.to_dict(),
            "draft": draft.config.to_dict(),
            "steps": len(self.plan),
            "rows": len(lengths),
            "order": hashlib.sha256(json.dumps(self.plan).encode()).hexdigest(),
            **(identity or {}),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        self.resume()

    @property
    def total_steps(self) -> int:
        return len(self.plan)

    def resume(self) -> None:
        """Takes weights, moments and position from the newest checkpoint, where there is one."""
        self.step, progress = state.load_state(self.folder, self.draft, self.optimizer_step.optimizers, self.identity)
        self.progress = {"tokens_seen": 0, "first_loss": None, "best": None} | progress
        self.optimizer_step.refresh()

    def run(
        self,
        checkpoint_every: int = 100,
        log_every: int = 10,
        evaluate_every: int | None = None,
        num_steps: int | None = None,
        keep: int = 2,
    ) -> Iterator[dict]:
        """Trains to the end of the plan, yielding a row every `log_every` steps, at every evaluation and at the end:

        step, steps (of the whole plan), loss, grad_norm, lr, acceptance (marginal share of right drafts per TTT step on
        the batch just trained, list of K), in_vocabulary (share of its tokens that the drafter can name), tokens (slots
        read since the start of this process), tokens_seen (in all), tokens_per_second, seconds, seconds_left.

        Every `evaluate_every` steps and at the end a greedy chain of `num_steps` drafts (default: ttt_steps) is run
        along the held-out rows: heldout_accept_length, best_accept_length (weights kept for `load_best`).
        The newest `keep` checkpoints stay. Raises TrainingDiverged, and RuntimeError when another training runs here.
        """
        if self.step == self.total_steps:
            return
        steps_left = self.plan[self.step :]
        if self.ahead:
            reading = read_ahead(steps_left, self.read_step, self.ahead)
        else:
            reading = (self.read_step(step) for step in steps_left)
        with self._alone_here(), closing(reading):
            steps = num_steps or self.recipe.ttt_steps
            yield from self._run(reading, checkpoint_every, log_every, evaluate_every, steps, keep)

    def _run(self, reading, checkpoint_every, log_every, evaluate_every, num_steps, keep):
        started, first_step, tokens = time.perf_counter(), self.step, 0
        then, tokens_then = started, 0
        for read in reading:
            ahead, last = self.step + 1, self.step + 1 == self.total_steps
            evaluate = bool(self.heldout and evaluate_every and (ahead % evaluate_every == 0 or last))
            log = ahead % log_every == 0 or last or evaluate
            row = self._optimize(read, measure=log)
            slots = row.pop("slots")
            tokens += slots
            self.step += 1
            self.progress["tokens_seen"] += slots
            if log:
                now = time.perf_counter()
                rate, then, tokens_then = (tokens - tokens_then) / (now - then), now, tokens
            if evaluate:
                row |= self._evaluate(num_steps)
                then = time.perf_counter()  # an evaluation does not count as training
            if self.step % checkpoint_every == 0 or last:
                self._save(keep)
            if log:
                seconds = time.perf_counter() - started
                yield {
                    "step": self.step,
                    "steps": self.total_steps,
                    **row,
                    "tokens": tokens,
                    "tokens_seen": self.progress["tokens_seen"],
                    "tokens_per_second": rate,
                    "seconds": seconds,
                    "seconds_left": seconds / (self.step - first_step) * (self.total_steps - self.step),
                }

    def _save(self, keep: int) -> None:
        optimizers, leads = self.optimizer_step.optimizers, self.team.leads
        state.save_state(self.folder, self.draft, optimizers, self.step, self.identity, self.progress, keep, leads)

    def read_step(self, micro_batches: Sequence[list[str]]) -> ReadStep:
        """Reads one step of the plan, as far as it is this process's.

        Called ahead of time in another thread, which leaves all large tensor work to the training thread: a second team
        of OpenMP threads beside the training's would keep both from spinning, and slow every small operation.
        """
        share = self.team.share(micro_batches)
        has_less = len(share) * self.team.size < len(micro_batches)
        return ReadStep([*map(self._read, share)], self._read(micro_batches[0]) if has_less else None)

    def _optimize(self, read: ReadStep, measure: bool) -> dict:
        """One optimizer step; nothing is changed when it diverges."""
        recipe = self.recipe
        batches = [*map(self._batch, read.micro_batches)]
        sums = self.optimizer_step.gradients(batches, measure, None if read.idle is None else self._batch(read.idle))
        grad_norm = self.optimizer_step.clip()
        if why := self._divergence(sums.loss, grad_norm, measure):
            self.optimizer_step.forget()
            advice = f"The last good weights are in {self.folder}. Lower lr={recipe.lr} / head_lr={recipe.head_lr}."
            rows = {piece: row for micro_batch in read.micro_batches for piece, row in micro_batch.items()}
            stop_diverged(self.folder, self.step, self.team.rank, rows, why, advice)
        factor = schedule(self.step, self.total_steps, recipe)
        self.optimizer_step.apply(factor)
        row = {"slots": sums.slots, "loss": sums.loss, "grad_norm": grad_norm, "lr": recipe.lr * factor}
        if measure:
            row["acceptance"] = (sums.right_K / sums.trained_K.clamp(min=1)).tolist()
            row["in_vocabulary"] = sums.in_vocabulary
        return row

    def _read(self, piece_ids: Sequence[str]) -> dict[str, object]:
        return {piece: self.read_row(piece) for piece in piece_ids}

    def _batch(self, rows: Mapping[str, object]) -> TTTBatch:
        return make_batch(rows.values(), self.recipe.ttt_steps, self.recipe.loss_mask_kind)

    def _divergence(self, loss: float, grad_norm: float, measure: bool) -> str | None:
        """Why the training must stop here, None when it need not."""
        if not (math.isfinite(grad_norm) and math.isfinite(loss)):
            return f"loss {loss}, gradient norm {grad_norm}"
        if measure:
            first = self.progress["first_loss"] = self.progress["first_loss"] or loss
            factor = self.recipe.explode_factor
            if factor is not None and loss > factor * first:
                return f"loss {loss:.4g} is more than explode_factor={factor} times the first one, {first:.4g}"
        return None

    def _evaluate(self, num_steps: int) -> dict:
        """Accept length on the held-out rows; keeps the weights when it is the best so far."""
        rows = map(self.read_row, self.team.share(self.heldout))
        with self.optimizer_step.whole_draft() as draft:
            counts = torch.tensor(simulated_commits(draft, rows, num_steps), dtype=torch.float64)
        self.team.sum(counts)
        committed, verifications = counts.tolist()
        if not verifications:
            raise ValueError("no held-out row has an answer of two tokens or more: nothing to measure")
        accept_length = committed / verifications
        best = self.progress["best"]
        if best is None or accept_length > best["accept_length"]:
            best = self.progress["best"] = {"step": self.step, "accept_length": accept_length}
            state.save_best(self.folder, self.draft, self.step, accept_length, self.team.leads)
        return {"heldout_accept_length": accept_length, "best_accept_length": best["accept_length"]}

    @contextmanager
    def _alone_here(self):
        """One process of the team holds the folder for all of them."""
        if not self.team.leads:
            yield
            return
        with alone(self.folder, ".lock"):
            state.clear_leftovers(self.folder)
            yield
