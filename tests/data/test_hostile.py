"""Rows and files nobody would publish on purpose: each row is kept or falls with a reason, nothing is half-written."""

import gzip
import json
import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.data.adapters import ADAPTERS, conversation
from eagle3lab.data.choice import Choice
from eagle3lab.data.limits import Limits, plan_sets
from eagle3lab.data.prepare import prepare_set, read_prompts, read_tokenized
from eagle3lab.data.records import RecordsError
from eagle3lab.data.side_by_side import Preparation, PreparationError, prepare_sets
from eagle3lab.data.sources import SetSpec, set_spec
from eagle3lab.data.view import first_samples, samples_html
from eagle3lab.workbench.files import read_jsonl

OPEN = Limits(limit_heldout=None, min_chars=1, max_chars=10**9, max_prompt_tokens=10**9, max_reference_tokens=100)


@pytest.fixture
def prepare(tmp_path_factory, chatml):
    """Prepare rows (or raw bytes); returns (summary, folder), with every row accounted for."""

    def run(rows, adapter="messages", kind="prompts", name="rows.jsonl", **changes):
        folder = tmp_path_factory.mktemp("hostile")
        raw = rows if isinstance(rows, bytes) else "".join(json.dumps(row) + "\n" for row in rows).encode()
        (folder / name).write_bytes(raw)
        spec = SetSpec("set", adapter, kind, path=str(folder / name))
        summary = prepare_set(spec, chatml, folder / "out", replace(OPEN, **changes), blocked={})
        kept, fallen = summary["prompts"] + summary["tokenized"], read_jsonl(folder / "out" / "set" / "errors.jsonl")
        assert summary["input"] == kept + len(fallen)
        return summary, folder / "out" / "set"

    return run


COLUMNS = ["messages", "conversations", "trajectory", "history", "prompt", "question", "instruction", "input", "output",
           "response", "system", "chat", "tools", "function", "id", "thinking"]  # fmt: skip
KEYS = ["role", "content", "from", "value", "text", "type", "name", "arguments", "tool_calls", "function",
        "system_prompt"]  # fmt: skip
words = st.one_of(
    st.sampled_from(["user", "assistant", "human", "gpt", "ai", "system", "tool", "text", "tool_call"]),
    st.sampled_from(["\x00", "\ud800"]),
    st.sampled_from(["USER: a\n\n\nASSISTANT: <functioncall> {", "SYSTEM: {}", "[", "{}", '{"name": 1}', "<think>"]),
    st.text(max_size=6),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
rows_of_anything = st.lists(values | st.dictionaries(st.sampled_from(COLUMNS), values, max_size=4), max_size=4)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(adapter=st.sampled_from(sorted(ADAPTERS)), rows=rows_of_anything, kind=st.sampled_from(["prompts", "tokenized"]))
def test_whatever_stands_in_a_row_it_is_kept_or_falls_with_a_reason(prepare, adapter, rows, kind):
    summary, folder = prepare(json.dumps(rows).encode(), adapter, kind)
    assert summary["input"] == len(rows)
    assert len(list(read_prompts(folder))) == summary["prompts"]
    assert len(list(read_tokenized(folder))) == summary["samples"]


def _chat(question, answer="Fine.", **more):
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]} | more


def test_a_row_that_breaks_its_adapter_costs_itself_alone(prepare):
    rows = [
        {"messages": [{"role": ["user"], "content": "Hi"}]},
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": 5}]},
        _chat("What is rice?"),
    ]
    summary, folder = prepare(rows)
    assert (summary["prompts"], summary["errors"]) == (1, {"broken_row": 2})
    details = [line["detail"] for line in read_jsonl(folder / "errors.jsonl")]
    assert details[0].startswith("TypeError: unhashable") and details[1].startswith("TypeError: 'int'")


def test_an_adapter_of_ones_own_that_finds_no_column_says_so_for_every_row(prepare, monkeypatch):
    adapt = lambda row, name: conversation(row, name, [{"role": "user", "content": row["post"]}])  # noqa: E731
    monkeypatch.setitem(ADAPTERS, "forum", adapt)
    summary, folder = prepare([{"text": "a"}, {"text": "b"}], "forum")
    assert summary["errors"] == {"broken_row": 2}
    assert read_jsonl(folder / "errors.jsonl")[0]["detail"] == "KeyError: 'post'"


def test_nul_bytes_surrogates_and_direction_marks_stay_in_their_row(prepare, chatml):
    rows = [_chat("a\x00b", "c\x00d"), _chat("x\u202ey", "z\u2028"), _chat("lone \ud800"), _chat("ok", id="\udfff")]
    summary, folder = prepare(rows)
    assert (summary["prompts"], summary["errors"]) == (3, {"not_unicode": 1})
    assert {row["messages"][0]["content"] for row in read_prompts(folder)} == {"a\x00b", "x\u202ey", "ok"}
    page = samples_html(chatml, first_samples(folder.parent, ["set"]))
    page.encode("utf-8")
    for line in (folder / "errors.jsonl").read_bytes().splitlines():
        json.loads(line)


def test_an_enormous_row_is_one_row(prepare):
    rows = [_chat("x" * 3_000_000), _chat("small")]
    summary, _ = prepare(rows, max_chars=1000)
    assert (summary["prompts"], summary["skipped"]) == (1, {"too_long": 1})
    summary, folder = prepare(rows, kind="tokenized", max_sample_tokens=50)
    assert (summary["tokenized"], summary["skipped"]) == (1, {"too_many_tokens": 1})
    assert all(len(row["input_ids"]) <= 50 for row in read_tokenized(folder))


def test_lists_in_lists_cost_one_row_of_json_lines_and_name_the_record_of_an_array(prepare):
    deep = b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    good = json.dumps(_chat("What is rice?")).encode() + b"\n"
    summary, _ = prepare(deep + good)
    assert (summary["prompts"], summary["errors"]) == (1, {"unreadable_record": 1})
    inside = json.dumps({"messages": "[" * 100_000}).encode() + b"\n"  # JSON in a text
    summary, _ = prepare(inside + good)
    assert summary["prompts"] == 1 and sum(summary["errors"].values()) == 1
    for bad in (deep, b'{"id": ' + b"9" * 5000 + b"}"):
        with pytest.raises(RecordsError, match=r"rows.json: record 1 \(byte \d+\) cannot be read"):
            prepare(b"[" + good + b"," + bad + b"]", name="rows.json")


def test_empty_conversations_and_empty_files_are_told(prepare):
    rows = [{"messages": []}, {"messages": ""}, {"messages": [{"role": "user", "content": " \n"}]}, {}, None, 5, "x"]
    summary, _ = prepare(rows)
    assert summary["prompts"] == 0 and summary["input"] == 7
    assert summary["skipped"] == {"empty_conversation": 1, "empty_prompt": 1}
    summary, folder = prepare(b"")
    assert summary["input"] == 0 and list(read_prompts(folder)) == []


def test_a_file_that_changes_while_it_is_read_leaves_nothing(tmp_path, chatml, monkeypatch):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "What is rice?"}) + "\n")
    adapt = ADAPTERS["prompts"]

    def growing(row, name):
        with open(path, "a") as file:
            file.write("\n")
        return adapt(row, name)

    monkeypatch.setitem(ADAPTERS, "growing", growing)
    with pytest.raises(RecordsError, match="set 'set': .*rows.jsonl changed while it was read"):
        prepare_set(SetSpec("set", "growing", path=str(path)), chatml, tmp_path / "out", OPEN, blocked={})
    assert list((tmp_path / "out").iterdir()) == []


def test_a_full_disk_is_no_fault_of_the_row(tmp_path, chatml, monkeypatch):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "What is rice?"}) + "\n")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Choice, "keep", full)
    spec = SetSpec("set", "prompts", path=str(tmp_path / "rows.jsonl"))
    with pytest.raises(OSError, match="No space left"):
        prepare_set(spec, chatml, tmp_path / "out", OPEN, blocked={})
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.json.gz", "rows.csv.gz"])
def test_a_packed_file_that_is_cut_off_is_named(tmp_path, chatml, name):
    text = "prompt\n" + "\n".join(f"Question {n} {os.urandom(20).hex()}" for n in range(2000))
    rows = [{"prompt": line} for line in text.splitlines()[1:]]
    raw = {"l": "\n".join(map(json.dumps, rows)), "n": json.dumps(rows), "v": text}[name[-4]].encode()
    (tmp_path / name).write_bytes(gzip.compress(raw)[:-2000])
    with pytest.raises(RecordsError, match=f"{name} is cut off or damaged"):
        prepare_set(SetSpec("set", "prompts", path=str(tmp_path / name)), chatml, tmp_path / "out", OPEN, blocked={})
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("name", ["..", ".", ".hidden", "-x", "suites.jsonl", "sets.json", "a/b", "", "ü"])
def test_a_name_that_is_no_folder_of_its_own_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="names a folder"):
        set_spec(f"{name}:prompts:{tmp_path}")


def test_a_set_given_twice_is_refused_and_the_same_file_under_two_names_gives_each_row_once(tmp_path, glass_folder):
    path = tmp_path / "rows.jsonl"
    texts = [f"Tell me of the cat and the {word}" for word in ("hat", "dog", "sun", "moon", "king", "queen")]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    limits = Limits(limit_heldout=None, min_chars=1, max_prompt_tokens=100)
    with pytest.raises(ValueError, match="'one' is named twice"):
        plan_sets([f"one:prompts:{path}", f"one:prompts:{path}"], limits)
    plans = plan_sets([f"one:prompts:{path}", f"two:prompts:{path}"], limits)
    one, two = prepare_sets(plans, Preparation(glass_folder, tmp_path / "out"), workers=1)
    assert (one["prompts"], two["prompts"], two["skipped"]) == (6, 0, {"duplicate": 6})


def test_a_file_that_cannot_be_opened_is_named_and_stops_no_other_set(tmp_path, glass_folder):
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("gone", "locked", "well")}
    for path in paths.values():
        path.write_text(json.dumps({"prompt": f"Tell me of the cat {path.stem}"}) + "\n")
    plans = plan_sets([f"{name}:prompts:{path}" for name, path in paths.items()], replace(OPEN, max_prompt_tokens=100))
    paths["gone"].unlink()
    paths["locked"].chmod(0)
    with pytest.raises(PreparationError) as caught:
        prepare_sets(plans, Preparation(glass_folder, tmp_path / "out"), workers=1)
    assert f"- gone: FileNotFoundError: [Errno 2] No such file or directory: '{paths['gone']}'" in str(caught.value)
    assert os.geteuid() == 0 or f"- locked: PermissionError: [Errno 13] Permission denied: '{paths['locked']}'" in str(
        caught.value
    )  # nothing is locked for root
    assert (tmp_path / "out" / "well" / "summary.json").exists()
