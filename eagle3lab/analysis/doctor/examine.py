"""The doctor's round: every artefact that is given is looked at, and what is not given is said to be unchecked.

Shapes: V target vocabulary.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from eagle3lab.analysis.doctor.commands import with_commands
from eagle3lab.analysis.doctor.corpus import check_corpus
from eagle3lab.analysis.doctor.draft import check_draft_vocabulary
from eagle3lab.analysis.doctor.features import check_features, recapture
from eagle3lab.analysis.doctor.report import NOT_GIVEN, Check, from_findings, guarded, judged
from eagle3lab.analysis.doctor.serving import (
    check_break_even,
    check_by_concurrency,
    check_launch,
    check_parity,
    check_server,
)
from eagle3lab.analysis.doctor.target import check_target, text_config
from eagle3lab.analysis.doctor.template import check_prompts_rendered, check_renders_as_served, check_template_clock
from eagle3lab.analysis.doctor.weights import check_rope, check_same_map, check_weights
from eagle3lab.analysis.parity import Parity
from eagle3lab.data.chat import end_token_ids, load_tokenizer
from eagle3lab.data.corpus import read_corpus
from eagle3lab.draft.aux_layers import some_aux_layers
from eagle3lab.draft.checkpoint import TRAINING
from eagle3lab.draft.engine_support import SERVER
from eagle3lab.draft.target_weights import TargetWeights, read_target_weights
from eagle3lab.draft.vocab import VocabMap, count_tokens
from eagle3lab.engines.servers.draft_guards import (
    check_context,
    check_release,
    check_trained_options,
    check_vocabulary,
)
from eagle3lab.engines.servers.model_files import DraftFiles, TargetFacts, read_draft, read_target
from eagle3lab.engines.sglang import draft_guards as sglang_guards
from eagle3lab.engines.sglang.attach import ServerInfo, attach
from eagle3lab.engines.sglang.draft_tensors import LLAMA_DRAFT
from eagle3lab.engines.sglang.spec import ServerSpec
from eagle3lab.engines.vllm import draft_guards as vllm_guards
from eagle3lab.engines.vllm.guards import TRIED
from eagle3lab.features.layout import STORE
from eagle3lab.features.slots import spans_to_mask
from eagle3lab.workbench.files import iter_jsonl, read_json

AREAS = ("target", "prepared", "corpus", "features", "vocab_map", "draft", "spec", "server", "benchmark", "parity")
GIVE = {"spec": "give launch", "parity": "05_diagnostics makes it from served answers, and prints this check"}
STALE_COVERAGE = 0.02  # of the answers' tokens, below the best map of this size: the map is of another corpus


@dataclass(frozen=True)
class Subject:
    """What the doctor is to look at; None: not given.

    target, prepared, corpus, features, vocab_map, draft: folders and files. aux_layers: hs indices that are meant.
    spec: a server to be launched with `release` of SGLang; server: the URL of one that runs, or what it told.
    benchmark: benchmark.json of 06_serving, or its rows. parity: what 05_diagnostics compared.
    vllm: the drafter is to be right behind vLLM too. recapture: run the target over a few rows of the features again.
    sample: rows of corpus and features that are looked at.
    """

    target: Path | None = None
    aux_layers: Sequence[int] | None = None
    prepared: Path | None = None
    corpus: Path | None = None
    features: Path | None = None
    vocab_map: Path | None = None
    draft: Path | None = None
    spec: ServerSpec | None = None
    release: str = SERVER.partition("==")[2]
    server: str | ServerInfo | None = None
    benchmark: Path | Sequence[Mapping] | None = None
    parity: Parity | None = None
    vllm: bool = True
    recapture: bool = False
    trust_remote_code: bool = False
    sample: int = 64
    corpus_rows: int = 5000


def run_doctor(subject: Subject) -> list[Check]:
    """All checks of what is given, area after area. Never raises for a bad artefact, and changes none."""
    return _Round(subject).rows()


class _Round:
    """One round. What several areas need is read once, and is None where it cannot be read: its own area says why."""

    def __init__(self, subject: Subject):
        self.s = subject
        self.found: list[Check] = []
        self.tokenizer = self._try(lambda: load_tokenizer(subject.target, subject.trust_remote_code), subject.target)
        self.weights: TargetWeights | None = self._try(lambda: read_target_weights(subject.target), subject.target)
        self.draft: DraftFiles | None = self._try(lambda: read_draft(subject.draft), subject.draft)
        self.vocab: VocabMap | None = self._try(lambda: VocabMap.load(subject.vocab_map), subject.vocab_map)

    @staticmethod
    def _try(read: Callable[[], Any], given: Any) -> Any:
        if given is None:
            return None
        try:
            return read()
        except Exception:  # whatever is wrong is a row of its own area
            return None

    def rows(self) -> list[Check]:
        remedy = "mend it as the message says, or give another"
        for area in AREAS:
            if getattr(self.s, area) is None:
                give = GIVE.get(area, f"give {area}")
                self.found.append(Check(area, NOT_GIVEN, "something to look at", "not checked", give))
            else:
                self.found += guarded(area, "something that can be read", remedy, getattr(self, f"_{area}"))
        given = {**vars(self.s), "server": self._url(), "layers": self._some_layers()}
        return with_commands(self.found, given, self.s.draft is not None and (self.s.draft / TRAINING).is_file())

    def _some_layers(self) -> list[int] | None:
        layers = self._try(lambda: text_config(self.s.target)["num_hidden_layers"], self.s.target)
        return self._try(lambda: some_aux_layers(layers), layers)

    def _url(self) -> str | None:
        return self.s.server.url if isinstance(self.s.server, ServerInfo) else self.s.server

    def _unsaid(self, rows: list[Check]) -> list[Check]:
        """The rows, without what the guards find in the drafter's folder where the drafter's own area has told it."""
        told = {row.found for row in self.found}
        return [row for row in rows if not (row.check.endswith("guards") and row.found in told)]

    def _target(self) -> list[Check]:
        rows = check_target(self.s.target, self.s.aux_layers)
        if self.tokenizer is None:
            remedy = "mend the tokenizer's files; code of the folder needs trust_remote_code"
            return [*rows, Check("tokenizer", "cannot be loaded", "a tokenizer with a chat template", "fault", remedy)]
        return [*rows, check_renders_as_served(self.tokenizer), check_template_clock(self.tokenizer)]

    def _prepared(self) -> list[Check]:
        files = sorted(self.s.prepared.glob("*/prompts.jsonl"))
        each = max(1, self.s.sample // max(1, len(files)))
        prompts = [row for file in files for row in islice(iter_jsonl(file, "skip"), each)]
        if self.tokenizer is None:
            return [Check("prompts as the template renders them", "no tokenizer", "", "not checked", "give the target")]
        return [check_prompts_rendered(self.tokenizer, prompts)]

    def _corpus(self) -> list[Check]:
        vocab_size = text_config(self.s.target)["vocab_size"] if self.s.target else 2**31
        ends = end_token_ids(self.tokenizer, self.s.target) if self.tokenizer is not None else ()
        return check_corpus(self._corpus_rows(), vocab_size, ends, self.tokenizer)

    def _corpus_rows(self) -> Iterable[dict]:
        return islice(read_corpus(self.s.corpus), self.s.corpus_rows)

    def _features(self) -> list[Check]:
        s = self.s
        layers = self._layers_meant()
        head = self.weights.head_VH if self.weights else None
        rows = check_features(s.features, s.corpus, s.target, layers, head, s.sample, s.trust_remote_code)
        if not (s.features / STORE).is_file():
            return rows
        if s.recapture and s.target is not None:
            return [*rows, recapture(s.features, s.target, s.trust_remote_code)]
        remedy = "give the target and recapture: it runs over a few rows once more"
        return [*rows, Check("features recaptured", "not asked for", "the stored states", "not checked", remedy)]

    def _layers_meant(self) -> list[int] | None:
        """hs indices that were named, else those the drafter was trained on."""
        if self.s.aux_layers:
            return list(self.s.aux_layers)
        return self.draft.training.get("draft_config", {}).get("aux_layers") if self.draft else None

    def _vocab_map(self) -> list[Check]:
        name, expected = "vocabulary map", "increasing ids, d2t and t2d alike"
        remedy = "make the map again from this corpus (03_extraction), then train again"

        def read() -> Check:
            vocab = VocabMap.load(self.s.vocab_map)
            return Check(name, f"{vocab.size:,} of {vocab.vocab_size:,} ids", expected, "ok")

        rows = guarded(name, expected, remedy, read)
        known = self.vocab is not None and self.s.corpus is not None
        return rows + (self._map_of_corpus(self.vocab, remedy) if known else [])

    def _map_of_corpus(self, vocab: VocabMap, remedy: str) -> list[Check]:
        train = [row for row in self._corpus_rows() if row["split"] == "train"]
        pairs = ((torch.as_tensor(r["input_ids"]), spans_to_mask(r["loss_spans"], len(r["input_ids"]))) for r in train)
        counts_V = count_tokens(pairs, vocab.vocab_size)
        seen = len({int(i) for row in train for i in row["input_ids"]})  # prompts may be trained too
        best = float(counts_V.sort(descending=True).values[: vocab.size].sum()) / max(1, int(counts_V.sum()))
        covered = vocab.coverage(counts_V)
        words, most = f"covers {covered:.1%} of the answers' tokens", f"near {best:.1%}, the best of this size"
        stale = covered < best - STALE_COVERAGE
        fresh = judged("vocabulary map fresh", words, most, "fault" if stale else "ok", remedy)
        return [fresh, check_draft_vocabulary(vocab.size, counts_V.numpy(), seen)]

    def _draft(self) -> list[Check]:
        draft, known = read_draft(self.s.draft), self.weights or TargetWeights(None, None, None)
        device = self.s.spec.device if self.s.spec else "cuda"
        network, options = (
            sglang_guards.check_architecture(draft, device),
            check_release(draft, "SGLang", self.s.release) + check_trained_options(draft),
        )
        return [
            *from_findings("draft network", network, draft.architecture, "one that SGLang knows"),
            *from_findings("draft options", options, f"known to SGLang {self.s.release}", "options that are served"),
            *self._draft_for_target(draft),
            check_rope(draft),
            check_same_map(draft, self.vocab),
            *check_weights(draft, known.embed_VH, known.head_VH),
        ]

    def _draft_for_target(self, draft: DraftFiles) -> list[Check]:
        if self.s.target is None:
            return [Check("draft for its target", "no target", "a fitting pair", "not checked", "give the target")]
        target, context = read_target(self.s.target), self.s.spec.context_length if self.s.spec else None
        sizes = sglang_guards.check_sizes(draft, target)
        layers, d2t = sglang_guards.check_layers(draft, target), check_vocabulary(draft, target)
        length = check_context(draft, target, context)
        return [
            *from_findings("draft sizes", sizes, f"hidden {draft.hidden_size}", "those of the target"),
            *from_findings("draft layers", layers, f"hs{draft.layers_read(target)}", "the layers it was trained on"),
            *from_findings("draft d2t", d2t, "offsets into the target's ids", "offsets, each id once"),
            *self._draft_tensors(draft, target),
            *from_findings("draft context", length, "as long as served", "positions and rows as long as served"),
            *(self._draft_in_vllm(draft, target) if self.s.vllm else []),
        ]

    def _draft_tensors(self, draft: DraftFiles, target: TargetFacts) -> list[Check]:
        name, expected = "draft tensors", "all that are read, and no others"
        if draft.architecture != LLAMA_DRAFT:
            return [_unknown_tensors(name, draft, expected)]
        return from_findings(name, sglang_guards.check_tensors(draft, target), f"{len(draft.shapes)} tensors", expected)

    def _draft_in_vllm(self, draft: DraftFiles, target: TargetFacts) -> list[Check]:
        context = self.s.spec.context_length if self.s.spec else None
        findings = vllm_guards.check_draft(draft, target, context) + check_release(draft, "vLLM", str(TRIED))
        found = f"hs{vllm_guards.layers_read(draft, target)}, {len(draft.shapes)} tensors"
        name, expected = "draft in vLLM", f"the same folder right for vLLM {TRIED}"
        rows = from_findings(name, findings, found, expected)
        if draft.architecture in vllm_guards.LLAMA_DRAFTS:
            return rows
        return [row for row in rows if row.verdict != "ok"] + [_unknown_tensors(name, draft, expected)]

    def _spec(self) -> list[Check]:
        return self._unsaid(check_launch(self.s.spec, self.s.release, self.draft))

    def _server(self) -> list[Check]:
        info = self.s.server if isinstance(self.s.server, ServerInfo) else attach(self.s.server).info()
        return self._unsaid(check_server(info, self.draft, self.s.target, self.tokenizer))

    def _benchmark(self) -> list[Check]:
        rows = read_json(self.s.benchmark) if isinstance(self.s.benchmark, str | Path) else self.s.benchmark
        rows = rows.get("rows", []) if isinstance(rows, Mapping) else rows
        return [check_break_even(rows), check_by_concurrency(rows)]

    def _parity(self) -> list[Check]:
        return [check_parity(self.s.parity)]


def _unknown_tensors(name: str, draft: DraftFiles, expected: str) -> Check:
    """Which tensors an engine reads is known here for Llama-type drafters only."""
    found = f"{len(draft.shapes)} tensors of {draft.architecture or 'no architecture'}, whose names are not known here"
    remedy = f"serve it and look at its accept length, or convert it to {LLAMA_DRAFT}"
    return Check(name, found, expected, "not checked", remedy)
