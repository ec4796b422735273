"""A runs folder that holds the state of a real case, and the summary a person would write of it."""

import platform
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from eagle3lab.workbench.cli import main
from eagle3lab.workbench.files import append_jsonl, write_json_atomic
from eagle3lab.workbench.processes import own_identity
from eagle3lab.workbench.stages import STAGES
from eagle3lab.workbench.standing import standing_warnings
from eagle3lab.workbench.status import status

SERVED = {"setting": "chain 4", "tok_s": 82.3, "accept_length": 2.1, "break_even": 2.297, "speedup": 0.914}
SHARES = {"coverage": {"train": 0.97, "heldout": 0.912}}


def ago(**time):
    return (datetime.now(UTC) - timedelta(**time)).isoformat(timespec="milliseconds")


def add(runs, profile, stage, state="ok", started=None, ended=None, error=None, **results):
    """A run as its record, manifest and results tell it."""
    run_id = f"{stage}-{profile}"
    folder = runs / run_id
    started, ended = started or ago(hours=30), ended or ago(hours=29)
    record = {
        "run_id": run_id, "stage": stage, "profile": profile, "state": state, "started": started,
        "ended": None if state == "running" else ended, "seconds": 3600.0, "error": error,
        "device": {"host": platform.node()}, **own_identity(), "parameters": {},
        "upstream": {name: {"run_id": f"{name}-{profile}"} for name in STAGES[stage].needs},
    }  # fmt: skip
    folder.mkdir(parents=True)
    write_json_atomic(folder / "run.json", record)
    if state == "ok":
        (folder / "table.json").write_text("{}")
        entry = {"path": "table.json", "kind": "data", "bytes": 2, "sha256": "0"}
        write_json_atomic(folder / "manifest.json", {"main": entry})
        write_json_atomic(folder / "results.json", results)
    return folder


@pytest.fixture
def case(tmp_path, monkeypatch):
    """4,800 samples trained and served; 88,088 prepared, and their answers are being written."""
    monkeypatch.setenv("EAGLE3LAB_ROOT", str(tmp_path))
    runs = tmp_path / "runs"
    first, big = "samples_5k", "samples_88k"
    add(runs, first, "data_prep", headline=["4,800 prompts"])
    add(runs, first, "inference", answers=4800, finish={"stop": 4400, "length": 400})
    add(runs, first, "extraction", **SHARES)
    add(runs, first, "training")
    add(runs, first, "diagnostics", cycles_differing=0, accept_length_simulated={"accept_length": 2.1},
        accept_length_served={"accept_length": 2.1})  # fmt: skip
    add(runs, first, "serving", headline=["82.3 tok/s with chain 4, 90.0 without"], best=SERVED, differing_answers=0)
    add(runs, first, "scaling", "failed", error={"name": "ValueError", "message": "one amount <b>draws</b> no line"})
    add(runs, big, "data_prep", headline=["88,088 prompts of ten sets"])
    folder = add(runs, big, "inference", "running", started=ago(hours=9))
    progress = {"done": 31204, "total": 83288, "unit": "answers", "note": "", "rate": 0.7,
                "seconds_left": 55 * 3600.0, "updated": ago(minutes=30)}  # fmt: skip
    write_json_atomic(folder / "progress.json", progress)
    append_jsonl(folder / "metrics.jsonl", {"mean_tokens": 298, "requests_s": 1.1})
    append_jsonl(folder / "metrics.jsonl", {"mean_tokens": 788, "requests_s": 0.7, "server": "8000"})
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"mean_tok')  # the row that is being written
    return status("runs")


def test_done_running_stopped_and_next(case):
    done = [(row["profile"], row["stage"]) for row in case.done]
    assert len(done) == 7 and done[-1] == ("samples_88k", "01_data_prep")
    (running,) = case.running
    assert (running["profile"], running["stage"]) == ("samples_88k", "02_inference")
    assert running["progress"] == "31,204/83,288 answers · 1.4 s each"
    assert running["metrics"] == "mean_tokens 788, requests_s 0.7"
    hours, minutes, _ = map(int, running["left"].split(":"))
    assert (hours, minutes) in ((54, 29), (54, 30))  # 55 h were left half an hour ago
    (stopped,) = case.stopped
    assert stopped["reason"] == "ValueError: one amount <b>draws</b> no line"
    assert [(row["profile"], row["stage"], row["when"]) for row in case.next] == [
        ("samples_5k", "07_scaling", "now"),
        ("samples_88k", "03_extraction", "after 02_inference"),
    ]


def test_numbers_key_files_and_commands_are_those_of_the_records(case):
    assert [(row["profile"], row["stage"], row["result"]) for row in case.numbers] == [
        ("samples_5k", "01_data_prep", "4,800 prompts"),
        ("samples_5k", "06_serving", "82.3 tok/s with chain 4, 90.0 without"),
        ("samples_88k", "01_data_prep", "88,088 prompts of ten sets"),
    ]
    assert {row["path"] for row in case.key_files if row["profile"] == "samples_88k"} == {
        "runs/data_prep-samples_88k/table.json"
    }
    assert len(case.key_files) == len(case.done)
    assert [row["command"] for row in case.next] == [
        "python -m eagle3lab run samples_5k --from scaling",
        "python -m eagle3lab run samples_88k --from extraction",
    ]


def test_the_command_line_prints_it_and_writes_the_page(case, tmp_path, capsys):
    assert main(["status", "samples_88k", "--html", str(tmp_path / "status.html")]) == 0
    printed, page = capsys.readouterr().out, (tmp_path / "status.html").read_text()
    for words in ("88,088 prompts of ten sets", "31,204/83,288 answers", "run samples_88k --from extraction"):
        assert words in printed and words in page
    assert "samples_5k" not in printed + page


def test_the_warnings_a_person_would_write(case):
    assert [(row["stage"], row["warning"]) for row in case.warnings] == [
        ("02_inference", "8% of 4,800 answers were cut at their token limit; raise max_tokens"),
        ("03_extraction", "the draft vocabulary names 91.2% of held-out answer tokens: raise draft_vocab_size"),
        (
            "06_serving",
            "slower than the baseline: x0.91 in the best setting (chain 4, 82.3 tok/s); it pays above accept length "
            "2.30 and has 2.10",
        ),
    ]


def test_the_wrong_flag_is_a_warning():
    lengths = {"accept_length_simulated": {"accept_length": 2.1}, "accept_length_served": {"accept_length": 1.0}}
    ((stage, text),) = standing_warnings({"diagnostics": {**lengths, "cycles_differing": 900}})
    assert stage == "diagnostics" and "EAGLE instead of EAGLE3" in text and "2.10" in text
    lengths["accept_length_served"] = {"accept_length": 1.9}
    ((_, text),) = standing_warnings({"diagnostics": {**lengths, "cycles_differing": 1200}})
    assert text == "simulated differs from served in 1,200 cycles (accept length 2.10 simulated, 1.90 served)"


def test_what_a_grid_found_is_warned_of():
    loaded = "do not speculate: the best setting (num_steps 2) gives x0.80 at 8 streams"
    fine = {"best": {**SERVED, "speedup": 1.2}, "sampled": {"p": 0.4}, "advice": ["speculate with num_steps 2"]}
    assert standing_warnings({"serving": fine}) == []
    found = standing_warnings({"serving": {**fine, "sampled": {"p": 2e-7}, "advice": [*fine["advice"], loaded]}})
    assert [text for _, text in found] == [
        "sampled answers are distributed otherwise than those of plain decoding (p 2e-07)",
        loaded,
    ]


def test_what_a_busy_machine_measured_is_a_warning_and_no_result():
    text = "not measurable at one stream: baseline rounds 5.1 to 16.3 tok/s, break-even 0.86 (impossible below 1)"
    for speedup in (0.9, 1.59):
        served = {"best": {**SERVED, "break_even": 0.86, "speedup": speedup}, "advice": [text]}
        assert standing_warnings({"serving": served}) == [("serving", text)]


def test_nothing_is_warned_of_where_all_is_well_or_untold():
    good = {
        "inference": {"answers": 100, "finish": {"stop": 98, "length": 2}, "set_aside": 0},
        "extraction": {"coverage": {"heldout": 0.99}},
        "diagnostics": {"cycles_differing": 0},
        "serving": {"best": {**SERVED, "speedup": 1.2}, "differing_answers": 0},
        "training": {"loss": 2.0},
    }
    assert standing_warnings(good) == []
    assert standing_warnings({stage: {} for stage in good}) == []
    assert standing_warnings({"extraction": {"coverage": None}, "serving": {"best": None}}) == []


class Reader(HTMLParser):
    """Collects the tags and the words of each cell."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.cells = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}

    def handle_data(self, data):
        self.cells.append(data)


def test_the_page_holds_the_same_and_escapes_it(case):
    page = Reader(case.to_html())
    assert "ValueError: one amount <b>draws</b> no line" in page.cells
    assert not {"b", "script", "link", "img"} & set(page.tags)
    for row in [*case.done, *case.running, *case.warnings, *case.next]:
        assert {str(value) for value in row.values() if value != ""} <= set(page.cells)
    headings = ["Done", "Running", "Stopped", "Next", "Warnings", "Numbers", "Others", "Key files"]
    assert [cell for cell in page.cells if cell in headings] == headings
    markdown = case.to_markdown()
    assert re.findall(r"^## (.*)$", markdown, re.M) == headings
    assert "&lt;b&gt;draws" in markdown and "<b>" not in markdown
