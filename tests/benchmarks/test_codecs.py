"""The study of codecs that chose the default: its lines are sound, and README says what they say."""

import json
import statistics

from benchmarks.codecs import CODECS, SETTING, report
from eagle3lab.workbench.params import resolve_parameters
from eagle3lab.workbench.root import package_parent

ROOT = package_parent()
LINES = [json.loads(line) for line in (ROOT / "dev" / "codecs.jsonl").read_text().splitlines()]
LENGTHS = {codec: [line["accept_length"] for line in LINES if line["codec"] == codec] for codec in CODECS}


def change(codec):
    """Change of the accept length against bf16, seed by seed."""
    return [ours / exact - 1 for ours, exact in zip(LENGTHS[codec], LENGTHS["bf16"], strict=True)]


def test_every_codec_was_trained_with_the_same_seeds_on_the_same_text():
    for codec in CODECS:
        assert [line["seed"] for line in LINES if line["codec"] == codec] == [0, 1, 2]
    assert len({json.dumps(line["setting"]) for line in LINES}) == 1
    assert set(LINES[0]["setting"]) == {*SETTING, "corpus", "compute_dtype"}


def test_the_smallest_is_near_three_h_and_no_codec_costs_accept_length():
    size = {line["codec"]: line["bytes_per_token"] / line["hidden_size"] for line in LINES}
    assert size["fp8+top16"] < 3.15 < size["fp8"] < 4.05 < size["bf16"]
    assert all(abs(statistics.mean(change(codec))) < 0.01 for codec in CODECS)


def test_readme_says_what_was_measured():
    text = (ROOT / "README.md").read_text()
    for codec in CODECS[1:]:
        error = statistics.stdev(change(codec)) / 3**0.5
        assert f"`{codec}` {statistics.mean(change(codec)):+.2%} ± {error:.2%}".replace("%", " %") in text
    assert resolve_parameters("extraction", "demo").values["codec"] == "fp8"


def test_codecs_are_compared_seed_by_seed():
    def line(codec, seed, length):
        return {"codec": codec, "seed": seed, "accept_length": length, "bytes_per_token": 300, "hidden_size": 100}

    lines = [line("bf16", 0, 1.5), line("bf16", 1, 1.6), line("fp8", 0, 1.53), line("fp8", 1, 1.6), line("fp8", 2, 9)]
    *_, last = report(lines, ("bf16", "fp8")).splitlines()
    # by hand: 1.53 / 1.5 is 2 % more, 1.6 / 1.6 none: 1 % and 1 %; of drafts 0.53 / 0.5 is 6 % more: 3 % and 3 %
    assert last.endswith("against bf16 +1.00% +- 1.00%, accepted drafts +3.0% +- 3.0%")
    assert "= 3.00 H   accept length 1.565 (1.530, 1.600)" in last
    assert report(lines[2:], ("bf16", "fp8")) == ""  # nothing to compare with
