import csv
import gzip
import json
import sys
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.data import sources
from eagle3lab.data.filters import parse_columns, parse_where, row_filter
from eagle3lab.data.limits import Limits
from eagle3lab.data.prepare import prepare_set
from eagle3lab.data.records import RecordsError
from eagle3lab.data.sources import SETS, SetSpec, open_rows, pinned, set_spec

ROWS = [
    {"prompt": "What is rice?", "n": 1},
    {"prompt": "ünï 日本\nWhy?", "n": 2},
    {"prompt": 'a "quoted", one', "n": 3},
]


def _rows(place, adapter="prompts"):
    with open_rows(set_spec(f"mine:{adapter}:{place}")) as rows:
        return list(rows), rows.lost


def _write(folder):
    (folder / "a.json").write_text(json.dumps(ROWS))
    (folder / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress((folder / "b.jsonl").read_bytes()))
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "d.parquet")
    with open(folder / "e.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["prompt", "n"])
        writer.writeheader()
        writer.writerows(ROWS)
    (folder / "f.json").write_text(json.dumps(ROWS[0], indent=2))


def test_the_same_rows_come_out_of_every_format(tmp_path):
    _write(tmp_path)
    for name in ("a.json", "b.jsonl", "c.jsonl.gz", "d.parquet"):
        assert _rows(tmp_path / name) == (ROWS, []), name
    assert _rows(tmp_path / "e.csv") == ([row | {"n": str(row["n"])} for row in ROWS], [])
    assert _rows(tmp_path / "f.json") == ([ROWS[0]], [])


def test_a_folder_is_its_files_in_the_order_of_their_names(tmp_path):
    _write(tmp_path)
    (tmp_path / "readme.md").write_text("no rows")
    (tmp_path / "b.jsonl").write_text('{"prompt": "x"}\n{"prompt": \n')
    rows, lost = _rows(tmp_path)
    assert [row["prompt"] for row in rows[:4]] == [row["prompt"] for row in ROWS] + ["x"]
    assert len(rows) == 3 + 1 + 3 + 3 + 3 + 1
    (one,) = lost
    assert one.record == 4 and one.reason.startswith("b.jsonl: not JSON")
    assert set(set_spec(f"mine:prompts:{tmp_path}").origin()["sha256"]) == {
        "a.json", "b.jsonl", "c.jsonl.gz", "d.parquet", "e.csv", "f.json"
    }  # fmt: skip


def test_a_folder_without_rows_is_refused(tmp_path):
    (tmp_path / "readme.md").write_text("no rows")
    with pytest.raises(RecordsError, match="holds no file ending in"):
        _rows(tmp_path)


def test_parquet_is_streamed_and_a_damaged_file_is_named(tmp_path):
    pq.write_table(pa.table({"prompt": [f"q{n}" for n in range(1000)]}), tmp_path / "x.parquet", row_group_size=100)
    with open_rows(SetSpec("x", "prompts", path=str(tmp_path / "x.parquet"))) as rows:
        assert next(iter(rows)) == {"prompt": "q0"}
    (tmp_path / "x.parquet").write_bytes((tmp_path / "x.parquet").read_bytes()[:-100])
    with pytest.raises(RecordsError, match="x.parquet cannot be read as Parquet"):
        _rows(tmp_path / "x.parquet")


def test_a_csv_row_of_another_width_is_lost_and_told(tmp_path):
    (tmp_path / "x.csv").write_bytes('\ufeffprompt,n\r\na,1\r\nb\r\n\r\n日本,3\r\n"open,4\r\n'.encode())
    rows, lost = _rows(tmp_path / "x.csv")
    assert rows == [{"prompt": "a", "n": "1"}, {"prompt": "日本", "n": "3"}]
    assert [(one.record, one.reason.split(":")[0]) for one in lost] == [
        (1, "1 cells, the header has 2"), (3, "not CSV")
    ]  # fmt: skip
    (tmp_path / "y.csv").write_text("a,a\n1,2\n")
    with pytest.raises(RecordsError, match="columns repeat"):
        _rows(tmp_path / "y.csv")


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\ufeff"), max_size=8)


@settings(deadline=None, max_examples=100)
@given(table=st.lists(st.lists(cells, min_size=2, max_size=2), max_size=5))
def test_every_csv_that_python_writes_is_read(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["prompt", "n"], *table])
    assert _rows(path) == ([dict(zip(["prompt", "n"], row, strict=True)) for row in table], [])


@pytest.fixture
def hub(monkeypatch):
    """Stands in for the `datasets` library, which is no dependency; it remembers how it was called."""
    module, calls = ModuleType("datasets"), []

    def load_dataset(path, **options):
        calls.append((path, options))
        if path == "no/such":
            raise FileNotFoundError("Couldn't find any data file at no/such")
        return iter(ROWS)

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr(sources, "hub_revision", lambda hub: "abc123")
    return calls


def test_a_hub_set_is_streamed_with_its_configuration_split_and_files(hub):
    with open_rows(set_spec("mine:prompts:hub:owner/name")) as rows:
        assert list(rows) == ROWS
    for name in ("mixture_of_thoughts", "ultrachat"):
        with open_rows(SETS[name]) as rows:
            list(rows)
    with open_rows(set_spec("sharegpt:sharegpt:hub:owner/copy")) as rows:
        list(rows)
    assert hub == [
        ("owner/name", {"split": "train", "streaming": True}),
        ("open-r1/Mixture-of-Thoughts", {"split": "train", "streaming": True, "name": "all"}),
        ("HuggingFaceH4/ultrachat_200k", {"split": "train_sft", "streaming": True}),
        ("owner/copy", {"split": "train", "streaming": True,
                        "data_files": "ShareGPT_V3_unfiltered_cleaned_split.json"}),
    ]  # fmt: skip


def test_what_is_read_of_the_hub_is_the_revision_that_is_recorded(hub, tmp_path, glass):
    spec = set_spec("mine:prompts:hub:owner/name")
    summary = prepare_set(spec, glass, tmp_path, Limits(min_chars=1), blocked={})
    assert summary["origin"] == {
        "hub": "owner/name", "config": None, "split": "train", "files": None, "revision": "abc123"
    }  # fmt: skip
    assert hub[0][1]["revision"] == "abc123"
    assert pinned(SETS["sharegpt"]) == SETS["sharegpt"]  # its rows are in a package


def test_what_the_hub_cannot_give_is_told(hub, monkeypatch):
    with pytest.raises(RecordsError, match="no/such, split train: FileNotFoundError: Couldn't find"):
        _rows("hub:no/such")
    monkeypatch.setitem(sys.modules, "datasets", None)  # as when it is not installed
    with pytest.raises(RecordsError, match=r"install the extra `hub` \(`pip install -e '.\[hub\]'`\), or download"):
        _rows("hub:owner/name")


def test_rows_of_a_folder_come_through_the_datasets_library_itself(tmp_path, monkeypatch, glass):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("datasets", reason="the extra `hub` is not installed")
    rows = [{"prompt": f"Tell me of the cat number {word}", "n": n} for n, word in enumerate(("one", "two", "ten"))]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert _rows(f"hub:{tmp_path / 'set'}") == (rows, [])
    limits = Limits(limit_heldout=None, min_chars=1, max_prompt_tokens=100)
    summary = prepare_set(set_spec(f"mine:prompts:hub:{tmp_path / 'set'}"), glass, tmp_path / "out", limits, blocked={})
    assert (summary["input"], summary["prompts"], summary["origin"]["revision"]) == (3, 3, None)
    with pytest.raises(RecordsError, match="split validation: ValueError"):
        _rows_of_split(tmp_path / "set", "validation")


def _rows_of_split(folder, split):
    with open_rows(SetSpec("mine", "prompts", hub=str(folder), split=split)) as rows:
        list(rows)


def test_a_known_set_from_another_place_keeps_what_is_known_of_it(tmp_path):
    _write(tmp_path)
    spec = set_spec(f"swe_agent:trajectory:{tmp_path / 'd.parquet'}")
    assert (spec.partition, spec.turn, spec.limit, spec.path) == ("long", "random", 3572, str(tmp_path / "d.parquet"))
    assert set_spec("sharegpt:sharegpt:hub:owner/name").package is None


def test_places_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ValueError, match="kimi_2000x:tolerant:PATH"):
        set_spec("kimi_2000x")
    with pytest.raises(ValueError, match="NAME:ADAPTER:hub:OWNER/NAME"):
        set_spec("mine:prompts")
    with pytest.raises(ValueError, match="no file at"):
        set_spec(f"mine:prompts:{tmp_path / 'none'}")
    with pytest.raises(ValueError, match="names a folder: letters"):
        set_spec(f"../mine:prompts:{tmp_path}")


@pytest.mark.parametrize(
    ("where", "kept"),
    [("n>=2", [2, 3]), ("n < 2", [1]), ("n==2", [2]), ("n!=2", [1, 3]), ("done==TRUE", [1, 3]),
     ("status==submitted (cost)", [2]), ("n>1 and done==true", [3]), ("score>0.5", [1, 3]), ("", [1, 2, 3])],
)  # fmt: skip
def test_conditions_compare_numbers_as_numbers_and_words_as_words(where, kept):
    rows = [{"n": 1, "done": True, "status": "x", "score": "0.9"},
            {"n": 2, "done": False, "status": "Submitted (cost)", "score": "0.10"},
            {"n": 3, "done": True, "status": "y", "score": "1"}]  # fmt: skip
    look = row_filter(where, "")
    assert [row["n"] for row in rows if look(row)[1] is None] == kept


@pytest.mark.parametrize("where", ["n", "n=>1", "n>many", ">1", "n>1 or m>1"])
def test_a_condition_that_is_none_is_refused(where):
    with pytest.raises(ValueError, match="where"):
        parse_where(where)


def test_columns_are_renamed_and_missing_ones_told():
    assert parse_columns("prompt:frage, answer:antwort") == {"prompt": "frage", "answer": "antwort"}
    with pytest.raises(ValueError, match="WANTED:GIVEN"):
        parse_columns("prompt")
    look = row_filter("", "prompt:frage")
    assert look({"frage": "Was?"}) == ({"frage": "Was?", "prompt": "Was?"}, None)
    for row, reason in [({"x": 1}, "no_column"), ("text", "not_an_object")]:
        with pytest.raises(ValueError) as caught:
            look(row)
        assert caught.value.reason == reason
    with pytest.raises(ValueError, match="no_column: where: 'n' is not among x"):
        row_filter("n>1", "")({"x": 1})
