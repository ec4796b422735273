import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dying_worker
import pytest

from eagle3lab.data import side_by_side
from eagle3lab.data.adapters import ADAPTERS
from eagle3lab.data.fingerprint import code_digest
from eagle3lab.data.limits import Limits, plan_sets
from eagle3lab.data.prepare import prepare_set, read_prompts
from eagle3lab.data.side_by_side import Preparation, PreparationError, kept_keys, prepare_sets, remove_stale
from eagle3lab.data.summary import ORDER, set_summaries

LIMITS = Limits(limit_train=6, limit_heldout=2, min_chars=1, max_prompt_tokens=60)
WORDS = "cat dog hat tree king queen moon sun river stone bird fish rose door house road".split()


def _prompt(n):
    return f"Tell me of the {WORDS[n % 16]} and the {WORDS[n // 16 % 16]}"


@pytest.fixture
def plans(tmp_path):
    """Three sets that share some of their prompts."""
    sets = []
    for name, numbers in (("one", range(0, 40)), ("two", range(20, 60)), ("three", range(100, 140))):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"prompt": _prompt(n)}) + "\n" for n in numbers))
        sets.append(f"{name}:prompts:{path}")
    return plan_sets(sets, LIMITS)


def _kept(folder):
    return {name: [row["id"] for row in read_prompts(folder / name)] for name in ("one", "two", "three")}


@pytest.fixture
def counted(monkeypatch):
    """The sets that are really prepared, in this process."""
    names = []

    def counting(spec, *args, **options):
        names.append(spec.name)
        return prepare_set(spec, *args, **options)

    monkeypatch.setattr(side_by_side, "prepare_set", counting)
    return names


@pytest.mark.slow  # a process takes seconds to import the tokenizer's library
def test_sets_side_by_side_hold_what_one_after_the_other_would(plans, tmp_path, glass, glass_folder):
    seen, alone = set(), tmp_path / "alone"
    for plan in plans:
        prepare_set(plan.spec, glass, alone, plan.limits, blocked={}, seen=seen)
    told = []
    preparation = Preparation(glass_folder, tmp_path / "beside")
    summaries = prepare_sets(plans, preparation, workers=2, on_progress=lambda name, rows: told.append((name, rows)))
    assert [summary["set"] for summary in summaries] == ["one", "two", "three"]
    assert _kept(tmp_path / "beside") == _kept(alone)
    kept = [key for name in ("one", "two", "three") for key in kept_keys(tmp_path / "beside" / name)]
    assert len(kept) == len(set(kept)) == 24
    assert summaries[1]["skipped"]["duplicate"] > 0
    assert set_summaries(tmp_path / "beside") == summaries
    assert sorted(p.name for p in (tmp_path / "beside").iterdir()) == ["one", ORDER, "three", "two"]


def test_a_finished_set_is_not_prepared_again(plans, tmp_path, glass_folder, counted):
    preparation = Preparation(glass_folder, tmp_path / "out")
    first = prepare_sets(plans, preparation, workers=1)
    assert counted == ["one", "two", "three", "two"]  # two holds prompts of one, and goes without them
    counted.clear()
    assert prepare_sets(plans, preparation, workers=1) == first
    assert counted == []


@pytest.mark.parametrize("change", ["limits", "rows", "suites", "setting", "context"])
def test_whatever_decides_about_a_set_prepares_it_again(plans, tmp_path, glass_folder, counted, change):
    out = tmp_path / "out"
    prepare_sets(plans[2:], Preparation(glass_folder, out), workers=1)
    counted.clear()
    sets, limits, options, preparation = (
        f"three:prompts:{plans[2].spec.path}",
        LIMITS,
        [],
        Preparation(glass_folder, out),
    )
    if change == "limits":
        limits = Limits(limit_train=5, limit_heldout=2, min_chars=1, max_prompt_tokens=60)
    elif change == "rows":
        with open(plans[2].spec.path, "a") as file:
            file.write('{"prompt": "One more of the cat"}\n')
    elif change == "setting":
        options = ["three.turn=last"]
    elif change == "context":
        preparation = Preparation(glass_folder, out, context_length=128)
    else:
        preparation = Preparation(glass_folder, out, suites=["bfcl"])
    prepare_sets(plan_sets([sets], limits, options), preparation, workers=1)
    assert counted == ["three"]


def test_a_set_takes_back_what_it_left_to_a_set_that_is_gone(plans, tmp_path, glass_folder, glass, counted):
    preparation = Preparation(glass_folder, tmp_path / "out")
    prepare_sets(plans, preparation, workers=1)
    beside = _kept(tmp_path / "out")["two"]
    prepare_sets(plans[1:], preparation, workers=1)
    prepare_set(plans[1].spec, glass, tmp_path / "alone", plans[1].limits, blocked={})
    alone = [row["id"] for row in read_prompts(tmp_path / "alone" / "two")]
    assert _kept(tmp_path / "out")["two"] == alone != beside


def test_a_set_that_fails_stops_no_other_and_is_named(plans, tmp_path, glass_folder, counted):
    good = Path(plans[1].spec.path).read_bytes()
    Path(plans[1].spec.path).write_bytes(b'[{"prompt": oops, "and": "much more text behind it"}]')
    preparation = Preparation(glass_folder, tmp_path / "out")
    with pytest.raises(PreparationError) as caught:
        prepare_sets(plans, preparation, workers=1)
    assert "1 of 3 sets" in str(caught.value) and "- two: RecordsError: two.jsonl: record 0" in str(caught.value)
    assert "kept for the next start: one, three" in str(caught.value)
    Path(plans[1].spec.path).write_bytes(good)
    counted.clear()
    prepare_sets(plans, preparation, workers=1)
    assert set(counted) == {"two"}


@pytest.mark.slow
def test_a_process_that_dies_takes_no_other_set_along(plans, tmp_path, glass_folder, monkeypatch):
    monkeypatch.setattr(side_by_side, "_work", dying_worker.work)
    with pytest.raises(PreparationError) as caught:
        prepare_sets(plans, Preparation(glass_folder, tmp_path / "out"), workers=2)
    assert "- two: its process ended with exit code -9" in str(caught.value)
    assert "kept for the next start: one, three" in str(caught.value)


def test_adapters_of_the_notebook_work_in_its_own_process(plans, tmp_path, glass_folder, monkeypatch, counted):
    adapt = ADAPTERS["prompts"]
    monkeypatch.setitem(ADAPTERS, "mine", lambda row, name: adapt(row, name))
    own = plan_sets([f"own:mine:{plans[0].spec.path}"], LIMITS)
    prepare_sets([*own, *plans[2:]], Preparation(glass_folder, tmp_path / "out"), workers=2)
    assert "own" in counted


def test_an_adapter_is_known_by_what_it_does_even_where_it_has_no_source():
    def typed(text):
        names = {}
        exec(text, names)  # as at a prompt
        return code_digest(names["adapt"])

    first = typed("adapt = lambda row, name: [(lambda x: x + row)(1) for _ in name]")
    assert first == typed("adapt = lambda row, name: [(lambda x: x + row)(1) for _ in name]")
    assert first != typed("adapt = lambda row, name: [(lambda x: x + row)(2) for _ in name]")


def test_impossible_limits_are_refused_before_anything_is_read(plans, tmp_path, glass_folder):
    with pytest.raises(ValueError, match="leaves no room"):
        prepare_sets(plans, Preparation(glass_folder, tmp_path / "out", context_length=50))
    assert not (tmp_path / "out").exists()


def test_leavings_of_dead_processes_are_removed_and_others_are_not(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    names = [f".one.{dead.pid}-ab12.tmp", f".one.{dead.pid}-ab12.old", f".one.{os.getpid()}-ab12.tmp", "one", ".x"]
    for name in names:
        (tmp_path / name).mkdir()
    remove_stale(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names[2:])


@pytest.mark.slow
def test_a_preparation_that_is_killed_goes_on_where_it_was(plans, tmp_path, glass_folder):
    sets = [f"{plan.spec.name}:prompts:{plan.spec.path}" for plan in plans]
    for plan in plans:  # long enough to be killed in
        path = Path(plan.spec.path)
        path.write_text(path.read_text() + '{"prompt": "%s"}\n' % ("far too long " * 20) * 100_000)
    program = f"""
from eagle3lab.data.limits import Limits, plan_sets
from eagle3lab.data.side_by_side import Preparation, prepare_sets
if __name__ == "__main__":
    limits = Limits(limit_train=6, limit_heldout=2, min_chars=1, max_chars=100, max_prompt_tokens=60)
    plans = plan_sets({sets!r}, limits)
    prepare_sets(plans, Preparation({str(glass_folder)!r}, {str(tmp_path / "out")!r}), workers=2,
                 on_progress=lambda name, rows: print(name, rows, flush=True))
"""
    (tmp_path / "run.py").write_text(program)

    def start():
        return subprocess.Popen([sys.executable, tmp_path / "run.py"], stdout=subprocess.PIPE, text=True)

    for rows in ("3000", "20000"):
        process = start()
        for line in process.stdout:
            if line.split()[1] == rows:
                break
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 120
    while any(_alive(item.name) for item in (tmp_path / "out").iterdir()):
        assert time.monotonic() < deadline, "a worker went on without its parent"
        time.sleep(0.2)
    process = start()
    process.communicate()
    assert process.returncode == 0
    seen, alone = set(), tmp_path / "alone"
    from eagle3lab.data.chat import load_tokenizer

    limits = Limits(limit_train=6, limit_heldout=2, min_chars=1, max_chars=100, max_prompt_tokens=60)
    for plan in plan_sets(sets, limits):
        prepare_set(plan.spec, load_tokenizer(glass_folder), alone, plan.limits, blocked={}, seen=seen)
    assert _kept(tmp_path / "out") == _kept(alone)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["one", ORDER, "three", "two"]


def _alive(name):
    match = side_by_side._STALE.match(name)
    return bool(match) and Path(f"/proc/{match['pid']}").exists()
