"""Prepared prompts as a dispatch takes them: in order, in their partitions, read again each time and never kept."""

import json

import pytest

from eagle3lab.data.summary import ORDER
from eagle3lab.engines.dispatch.prompts import Partition, prepared_works

PARTITIONS = {"short": Partition("short", 150, 96), "long": Partition("long", 32, 1024)}


@pytest.fixture
def prepared(tmp_path):
    """Sets zebra (short, 5 + 2 rows), ant (long, 3 + 0), native (tokenized), and a benchmark that is called ant."""

    def lines(path, rows):
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    summaries = []
    for name, kind, partition, splits in (
        ("zebra", "prompts", "short", {"train": 5, "heldout": 2}),
        ("ant", "prompts", "long", {"train": 3}),
        ("native", "tokenized", "long", {"train": 4}),
    ):
        rows = [
            {"id": f"{name}-{split}-{n}", "set": name, "split": split, "prompt_ids": [n + 1], "messages": []}
            for split, count in splits.items()
            for n in range(count)
        ]
        lines(tmp_path / name / "prompts.jsonl", rows if kind == "prompts" else [])
        summaries.append({"set": name, "kind": kind, "partition": partition, "splits": splits})
    (tmp_path / ORDER).write_text(json.dumps(summaries))
    names = ("ant", "q") * 2
    suites = [{"id": f"{s}-{n // 2}", "set": s, "split": "heldout", "prompt_ids": [9]} for n, s in enumerate(names)]
    lines(tmp_path / "suites.jsonl", suites)
    return tmp_path


def shown(works):
    return [(work.set, work.partition.name, [row_id for row_id, _ in work.prompts]) for work in works]


def test_sets_come_in_the_order_asked_for_each_in_its_partition(prepared):
    works = prepared_works(prepared, "train", PARTITIONS)
    assert shown(works) == [
        ("zebra, train", "short", [f"zebra-train-{n}" for n in range(5)]),
        ("ant, train", "long", [f"ant-train-{n}" for n in range(3)]),
    ]
    assert shown(works) == shown(works)
    assert list(works[1].prompts) == [(f"ant-train-{n}", [n + 1]) for n in range(3)]


def test_benchmarks_stand_behind_the_held_out_rows_also_under_the_name_of_a_set(prepared):
    assert shown(prepared_works(prepared, "heldout", PARTITIONS)) == [
        ("zebra, heldout", "short", ["zebra-heldout-0", "zebra-heldout-1"]),
        ("ant, benchmark", "short", ["ant-0", "ant-1"]),
        ("q, benchmark", "short", ["q-0", "q-1"]),
    ]


def test_a_limit_counts_for_each_set(prepared):
    assert [ids for *_, ids in shown(prepared_works(prepared, "train", PARTITIONS, limit=2))] == [
        ["zebra-train-0", "zebra-train-1"], ["ant-train-0", "ant-train-1"]
    ]  # fmt: skip


def test_prompts_stay_in_their_file(prepared):
    zebra, _ = prepared_works(prepared, "train", PARTITIONS)
    (prepared / "zebra" / "prompts.jsonl").write_text(json.dumps({"id": "new", "split": "train", "prompt_ids": [7]}))
    assert list(zebra.prompts) == [("new", [7])]
