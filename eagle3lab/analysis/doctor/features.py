"""Checks of a feature store, without changing it: nothing is moved aside, as opening it for reading would do.

Shapes: T tokens, A aux layers, H hidden, M slots with a teacher, V target vocabulary.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from eagle3lab.analysis.doctor.commands import EXTRACTION_PLAN
from eagle3lab.analysis.doctor.report import Check, guarded, judged
from eagle3lab.data.corpus import corpus_summary, read_corpus
from eagle3lab.data.fingerprint import target_fingerprint
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.features.codec import Codec, teacher_tensors, token_tensors
from eagle3lab.features.encode import FeatureRow, decode_row
from eagle3lab.features.layout import STORE, read_index, read_manifest, shard_is_whole
from eagle3lab.features.shardfile import ShardFile, checksum
from eagle3lab.features.slots import spans_to_mask

EXTRACT = "extract again (03_extraction); it captures only what is missing"
AFRESH = "remove the features and extract again (03_extraction)"
FRESH = "made from this corpus, target, tokenizer and chat template"
LONG_TAIL = 8  # equal trained tokens at the end that look like padding
SURPRISE_NATS = 0.2  # mean surprisal above mean entropy, from which a text is not the target's own
MOST_SURPRISES = 256  # tokens of a row that are looked at: each costs a pass over the output head
RECAPTURED = 4  # rows that are captured once more
SAME_STATE = 0.05  # relative error of the same states captured twice, in bfloat16 or with a codec of 8 bits


def check_features(
    folder: str | Path,
    corpus: str | Path | None = None,
    target: str | Path | None = None,
    aux_layers: Sequence[int] | None = None,
    head_VH: torch.Tensor | None = None,
    sample: int = 64,
    trust_remote_code: bool = False,
) -> list[Check]:
    """All checks of a store's files, of its record, and of a sample of its rows. head_VH: the target's output head;
    trust_remote_code: its tokenizer may be code in its folder."""
    folder = Path(folder)
    if not (folder / STORE).is_file():
        remedy = "let the extraction end (03_extraction); it goes on from what is there"
        return [Check("features files", f"no {STORE} in {folder}", "a finished store", "fault", remedy)]
    manifest = read_manifest(folder / STORE)
    files = check_shards(folder, manifest)
    fresh = guarded("features fresh", FRESH, AFRESH, lambda: check_fresh(manifest, corpus, target, trust_remote_code))
    rows = [files, *fresh, check_store_layers(manifest, aux_layers)]
    if files.verdict == "fault":
        return rows
    remedy = "remove the shard, then extract again (03_extraction)"
    expected = "rows that can be read"
    return rows + guarded("features rows", expected, remedy, lambda: _rows(folder, manifest, sample, corpus, head_VH))


def check_shards(folder: Path, manifest: dict) -> Check:
    """Every shard of the record is there with its size."""
    bad = [entry["name"] for entry in manifest["shards"] if not shard_is_whole(folder, entry)]
    found = (
        f"missing or cut: {', '.join(bad[:3])}" if bad else f"{len(manifest['shards'])} shards, {manifest['rows']} rows"
    )
    return judged("features files", found, "all shards whole", "fault" if bad else "ok", EXTRACT)


def check_fresh(
    manifest: dict, corpus: str | Path | None = None, target: str | Path | None = None, trust_remote_code: bool = False
) -> Check:
    """The store was made from this corpus, target and tokenizer."""
    name, known, now = "features fresh", manifest["fingerprint"], {}
    if corpus is not None:
        now["corpus"] = corpus_summary(corpus)["fingerprint"]
    if target is not None:
        now |= target_fingerprint(target, trust_remote_code=trust_remote_code)
    compared = [field for field in now if field in known]
    if not compared:
        return Check(name, "nothing to compare with", FRESH, "not checked", "give the corpus and the target")
    stale = [field for field in compared if known[field] != now[field]]
    found = f"another {', another '.join(stale)}" if stale else f"same {', '.join(compared)}"
    return judged(name, found, FRESH, "fault" if stale else "ok", AFRESH)


def check_store_layers(manifest: dict, aux_layers: Sequence[int] | None) -> Check:
    """The stored layers are those the drafter is to see."""
    name, stored = "features layers", list(manifest["aux_layers"])
    if aux_layers is None:
        return Check(name, f"hs{stored}", "any", "ok")
    wrong = stored != list(aux_layers)
    return judged(name, f"hs{stored}", f"hs{list(aux_layers)}", "fault" if wrong else "ok", AFRESH)


def sampled_rows(folder: Path, manifest: dict, sample: int) -> Iterator[FeatureRow]:
    """Rows spread evenly over the store. ValueError for rows whose bytes, or lines in the
    index, are not those written."""
    codec, entries = Codec.of(manifest["codec"]), []
    header_crc32 = {entry["name"]: entry.get("header_crc32") for entry in manifest["shards"]}
    for part in dict.fromkeys(entry["part"] for entry in manifest["shards"]):
        index, lacking = read_index(folder, part, [e for e in manifest["shards"] if e["part"] == part])
        if lacking:
            raise ValueError(f"index-{part}.jsonl does not hold the rows of {', '.join(lacking)} as they were written")
        entries += [index[row_id] for row_id in index]
    for entry in entries[:: max(1, len(entries) // max(1, sample))]:
        shard = ShardFile(folder / entry["shard"], header_crc32[entry["shard"]])
        try:
            start, last = entry["offset"], entry["last_offset"]
            block = shard.read(token_tensors(codec), start, start + entry["n"])
            block |= shard.read(teacher_tensors(codec), last, last + entry["n_last"])
        finally:
            shard.close()
        if checksum(block) != entry["crc32"]:
            raise ValueError(f"{entry['shard']}: the checksum of row {entry['id']!r} differs")
        yield decode_row(codec, entry, block)


def _rows(folder: Path, manifest: dict, sample: int, corpus, head_VH) -> list[Check]:
    rows = list(sampled_rows(folder, manifest, sample))
    ids = {row.id for row in rows}
    spans = None if corpus is None else {row["id"]: row["loss_spans"] for row in read_corpus(corpus, ids=ids)}
    return [
        Check("features rows", f"{len(rows)} rows read, checksums right", "rows that can be read", "ok"),
        check_states_finite(rows, manifest["aux_layers"]),
        check_row_masks(rows),
        check_padding(rows),
        check_own_text(rows, head_VH, spans),
    ]


def check_states_finite(rows: Iterable[FeatureRow], aux_layers: Sequence[int]) -> Check:
    """No NaN, no infinity, and no state that is zero from end to end."""
    bad, count = [], 0
    for row in rows:
        count += 1
        for a, layer in enumerate(aux_layers):
            state_TH = row.aux_TAH[:, a].float()
            if not bool(state_TH.isfinite().all()):
                bad.append(f"{row.id}: hs[{layer}] not finite")
            elif bool((state_TH == 0).all(-1).any()):
                bad.append(f"{row.id}: hs[{layer}] zero for {int((state_TH == 0).all(-1).sum())} tokens")
        if row.last_MH is not None and not bool(row.last_MH.float().isfinite().all()):
            bad.append(f"{row.id}: last state not finite")
    found = "; ".join(bad[:3]) or f"{count} rows finite"
    remedy = "look for overflow in the target's dtype, and for padded rows; then " + AFRESH
    return judged("features states", found, "finite, none zero", "fault" if bad else "ok", remedy)


def check_row_masks(rows: Iterable[FeatureRow]) -> Check:
    """Every row trains something, and its first token, which has no prompt, is not trained."""
    rows = list(rows)
    none = [row.id for row in rows if not bool(row.loss_mask_T.any())]
    whole = [row.id for row in rows if bool(row.loss_mask_T.all())]
    words = [f"{len(none)} of {len(rows)} rows train nothing, e.g. {none[0]}"] if none else []
    words += [f"{len(whole)} of {len(rows)} rows train every token, e.g. {whole[0]}"] if whole else []
    found = "; ".join(words) or f"{len(rows)} rows"
    remedy = "look at the loss spans of the corpus, then " + AFRESH
    return judged("features loss masks", found, "some tokens trained, and not all", "fault" if words else "ok", remedy)


def check_padding(rows: Iterable[FeatureRow]) -> Check:
    """No padding among the tokens: no run of one id at the untrained start, nor at the trained end."""
    rows, left, right = list(rows), [], []
    for row in rows:
        ids_T, mask_T = row.input_ids_T, row.loss_mask_T
        head = min(4, len(ids_T))
        if head == 4 and bool((ids_T[:4] == ids_T[0]).all()) and not bool(mask_T[:4].any()):
            left.append(row.id)
        tail = ids_T[-LONG_TAIL:]
        if len(ids_T) > LONG_TAIL and bool((tail == tail[-1]).all()) and bool(mask_T[-LONG_TAIL:].all()):
            right.append(row.id)
    words = [f"{len(left)} rows begin with one id four times, e.g. {left[0]}"] if left else []
    words += [f"{len(right)} rows end with one trained id {LONG_TAIL} times, e.g. {right[0]}"] if right else []
    found = "; ".join(words) or f"{len(rows)} rows"
    remedy = "store rows without padding: positions and masks are wrong behind it"
    many = len(left) + len(right) > 0.05 * len(rows)
    return judged("features padding", found, "no padding", "fault" if words and many else "ok", remedy)


@torch.no_grad()
def check_own_text(
    rows: Iterable[FeatureRow], head_VH: torch.Tensor | None, spans: Mapping[str, list[list[int]]] | None = None
) -> Check:
    """The answers are the target's own: what it wrote surprises it no more than it expects (mean -log p at most the
    mean entropy). Text of another model, or states of another target, surprise more.

    spans: answers of each row; None: all that is trained, which may be prompts too."""
    name, expected = "answers as the target writes", f"surprise at most {SURPRISE_NATS} nats above the entropy"
    if head_VH is None:
        return Check(name, "no output head", expected, "not checked", "give the target's folder")
    answers = ((row, None if spans is None else spans.get(row.id, [])) for row in rows)
    excess_R = [excess for row, own in answers if (excess := surprise(row, head_VH, own)) is not None]
    if len(excess_R) < 2:
        found, remedy, command = "fewer than two rows with states", "store last states, not top-k", EXTRACTION_PLAN
        return Check(name, found, expected, "not checked", remedy, f"{command} -p codec fp8")
    mean, error = float(np.mean(excess_R)), float(np.std(excess_R, ddof=1) / np.sqrt(len(excess_R)))
    found = f"{mean:+.2f} nats a token (± {2 * error:.2f}) over {len(excess_R)} rows"
    remedy = "let the target answer the prompts itself, and check that states and target belong together"
    return judged(name, found, expected, "warning" if mean - 2 * error > SURPRISE_NATS else "ok", remedy)


def surprise(row: FeatureRow, head_VH: torch.Tensor, spans: list[list[int]] | None = None) -> float | None:
    """Mean over the trained tokens (of the spans) of -log p(token) minus the entropy of p, in nats; None without last
    states there."""
    if row.last_MH is None:
        return None
    inside_T = row.loss_mask_T if spans is None else row.loss_mask_T & spans_to_mask(spans, len(row.loss_mask_T))
    chosen_M = inside_T[row.last_slots + 1].nonzero().flatten()[:MOST_SURPRISES]
    if not len(chosen_M):
        return None
    log_p_MV = (row.last_MH[chosen_M].to(head_VH.dtype) @ head_VH.T).float().log_softmax(-1)
    token_M = row.input_ids_T[row.last_slots[chosen_M] + 1]
    entropy_M = -(log_p_MV.exp() * log_p_MV).nan_to_num().sum(-1)
    return float((-log_p_MV.gather(1, token_M[:, None])[:, 0] - entropy_M).mean())


def recapture(folder: str | Path, target: str | Path, trust_remote_code: bool = False) -> Check:
    """A few rows of the store captured once more by the target, run in this process in the precision of the first time.

    What cannot be run or read here is not checked: other rows say what is wrong with the files.
    """
    try:
        manifest = read_manifest(Path(folder) / STORE)
        rows = list(sampled_rows(Path(folder), manifest, RECAPTURED))[:RECAPTURED]
        layers, dtype = manifest["aux_layers"], manifest["fingerprint"].get("dtype", "float32")
        engine = EmbeddedEngine(target, dtype, layers, trust_remote_code=trust_remote_code)
        again = engine.capture(((row.id, row.input_ids_T.tolist()) for row in rows), 2048)
        return check_recaptured(rows, again, layers)
    except Exception as error:  # a damaged file or a model of another kind fails in many ways
        remedy = "mend what the rows before say; where the target cannot run in this process, 03_extraction compares"
        expected = f"relative error below {SAME_STATE:.0%}"
        return Check("features recaptured", str(error).strip() or repr(error), expected, "not checked", remedy)


def check_recaptured(rows: Iterable[FeatureRow], again: Iterable, aux_layers: Sequence[int]) -> Check:
    """Rows captured once more (`id`, `aux_TAH`) have the stored states: same target, layers, positions, no padding."""
    name, expected = "features recaptured", f"relative error below {SAME_STATE:.0%}"
    by_id, worst, count = {row.id: row for row in rows}, dict.fromkeys(aux_layers, 0.0), 0
    for one in again:
        stored_TAH, count = by_id[one.id].aux_TAH.float(), count + 1
        for a, layer in enumerate(aux_layers):
            error = (one.aux_TAH[:, a].float() - stored_TAH[:, a]).norm() / stored_TAH[:, a].norm()
            worst[layer] = max(worst[layer], float(error))
    if not count:
        return Check(name, "nothing captured again", expected, "not checked", "store some rows first (03_extraction)")
    found = f"{count} rows, worst " + ", ".join(f"hs[{layer}] {error:.1e}" for layer, error in worst.items())
    remedy = "the target, its quantisation, the layers or the positions are others than when the features were made"
    return judged(name, found, expected, "fault" if max(worst.values()) > SAME_STATE else "ok", remedy)
