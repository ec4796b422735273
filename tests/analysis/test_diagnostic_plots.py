"""Figures of the diagnosis draw what they were given, readably; the token view is right, escaped and whole."""

from html.parser import HTMLParser
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest

from eagle3lab.analysis import diagnostic_plots as plots
from eagle3lab.analysis.attribution import Walked, attribute, verifications
from eagle3lab.analysis.proposals import Proposals, calibration
from eagle3lab.analysis.slices import attempts, grid, slice_by
from eagle3lab.analysis.token_view import STYLES, answers_html, token_html, token_kinds
from eagle3lab.draft.chain import first_slot, walk
from tests.analysis.figures import assert_named, readable_words
from tests.analysis.test_plots import DATA

matplotlib.use("agg")
V = 40
KNOWN = np.arange(V) % 11 != 3
BINS = ("below 0.05 bits", "0.05 to 0.5 bits", "0.5 to 1 bits", "1 to 2 bits", "2 to 4 bits", "4 bits and more")


def sample(K, answers=14, seed=0):
    random = np.random.default_rng(seed)
    rows, labels = [], []
    for number in range(answers):
        n = int(random.integers(40, 90))
        ids = random.integers(0, V, n)
        token_TK = np.minimum(np.arange(n)[:, None] + 2 + np.arange(K), n - 1)
        hits = (random.random((n, K)) < 0.6) & KNOWN[ids[token_TK]]
        rows.append(Walked(f"r{number}", "chat", 5, ids, tuple(walk(hits, first_slot(5), n))))
        labels.append(np.array(BINS, dtype=object)[random.integers(0, 5, n)])
    return verifications(rows, K, KNOWN), labels


def figures():
    found = {}
    for K in (3, 7):
        v, labels = sample(K)
        tried = attempts(v)
        random = np.random.default_rng(1)
        p = np.clip(np.where(tried.hit_N, 0.6, 0.3) + random.normal(0, 0.2, len(tried)), 0, 1)
        few, few_labels = sample(K, answers=2)
        groups = {
            "target entropy": slice_by(tried, labels, BINS),
            "set": slice_by(tried, [f"a set with a long name {i}" for i in range(14)]),
            "position in the answer": slice_by(tried, labels),
        }
        found |= {
            f"waterfall {K}": plots.waterfall(attribute(v), DATA),
            f"waterfall of little {K}": plots.waterfall(attribute(few), f"{DATA}; {DATA}"),
            f"slices {K}": plots.slice_chart(groups, DATA),
            f"heat map {K}": plots.entropy_heat_map(grid(tried, labels, BINS), DATA),
            f"heat map of little {K}": plots.entropy_heat_map(grid(attempts(few), few_labels, BINS), DATA),
            f"calibration {K}": plots.calibration_chart(calibration(p, tried.hit_N), DATA),
        }
    one = Walked("a", "s", 2, np.zeros(7, int), (0, 0, 0, 0))
    found["nothing accepted"] = plots.waterfall(attribute(verifications([one], 3, KNOWN)), DATA)
    return found


FIGURES = figures()


@pytest.mark.parametrize("name", FIGURES)
def test_no_word_overlaps_another_or_leaves_the_figure(name):
    assert len(readable_words(FIGURES[name])) > 5


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_names_its_data_and_its_axes(name):
    assert_named(FIGURES[name], DATA)


def test_the_waterfall_draws_the_parts():
    v, _ = sample(3)
    whole = attribute(v)
    bars = FIGURES["waterfall 3"].axes[0].patches
    heights = [bar.get_height() for bar in bars]
    assert heights[0] == 4 and heights[-1] == pytest.approx(whole.accept_length)
    assert heights[1:-1] == pytest.approx([-part.lost for part in whole.parts])
    bottoms = [bar.get_y() + bar.get_height() for bar in bars[1:-1]]
    assert bottoms[-1] == pytest.approx(whole.accept_length)  # the last step lands on the accept length
    assert [bar.get_y() for bar in bars[2:-1]] == pytest.approx(bottoms[:-1])


def test_a_small_slice_is_hollow():
    axes = FIGURES["slices 3"].axes[0]
    by_row = {line.get_ydata()[0]: line for line in axes.lines if line.get_marker() == "o"}
    named = dict(zip(axes.get_yticks(), [label.get_text() for label in axes.get_yticklabels()], strict=True))
    hollow = {named[row] for row, line in by_row.items() if line.get_markerfacecolor() == "white"}
    assert hollow and all(name.startswith("a set with a long name") for name in hollow)  # one answer each


def test_the_heat_map_shows_its_counts_and_leaves_empty_cells_empty():
    v, labels = sample(3)
    counted = grid(attempts(v), labels, BINS)
    texts = [text.get_text() for text in FIGURES["heat map 3"].axes[0].texts]
    tries, accepted = counted.attempts_RK[0, 0], counted.accepted_RK[0, 0]
    assert f"{accepted / tries:.0%} ({tries:,})" in texts
    assert len(texts) == int((counted.attempts_RK > 0).sum()) == 5 * 3  # no token has the last bin's label


# ---- token view --------------------------------------------------------------------------------------------

# slots 1, 4, 5, 7 of chains of 3, as in test_attribution; the last chain is cut by the end
ANSWER = Walked("<a>", "chat", 2, np.arange(11), (2, 0, 1, 1))
TEXT = {5: "<b>", 6: "\n", 7: '"&'}
TOKENIZER = SimpleNamespace(decode=lambda ids, **kwargs: "".join(TEXT.get(int(i), f" t{int(i)}") for i in ids))


def test_kinds_by_hand():
    assert token_kinds(ANSWER, 3) == [
        ("prefill", -1, -1),
        ("accepted", 1, 0), ("accepted", 1, 1), ("rejected", 1, 2),
        ("rejected", 4, 0),
        ("accepted", 5, 0), ("rejected", 5, 1),
        ("accepted", 7, 0), ("bonus", 7, 1),
    ]  # fmt: skip
    whole = Walked("b", "s", 2, np.arange(7), (3,))
    assert token_kinds(whole, 3)[-1] == ("bonus", 1, 3)


class Spans(HTMLParser):
    """Style, title and text of every span that has a title."""

    def __init__(self):
        super().__init__()
        self.found, self.tags = [], set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        values = dict(attributes)
        if tag == "span" and "title" in values:
            self.found.append([values["style"], values["title"], ""])
        elif tag == "span":
            self.found.append(None)

    def handle_data(self, text):
        if self.found and self.found[-1] is not None:
            self.found[-1][2] += text

    def handle_endtag(self, tag):
        if tag == "span":
            self.found.append(None)


def parse(html):
    parser = Spans()
    parser.feed(html)
    return [one for one in parser.found if one is not None], parser.tags


def proposals():
    ids_TKE, p_TKE = np.full((11, 3, 2), -1), np.zeros((11, 3, 2))
    ids_TKE[4, 0], p_TKE[4, 0] = (5, 9), (0.62, 0.2)
    return Proposals("<a>", ids_TKE, p_TKE)


def test_the_page_shows_every_token_escaped_with_what_was_drafted():
    html = answers_html([ANSWER], 3, TOKENIZER, [proposals()])
    spans, tags = parse(html)
    assert "script" not in tags and "b" not in tags and "http" not in html
    assert [text for _, _, text in spans] == [" t2", " t3", " t4", "<b>", "⏎\n", '"&', " t8", " t9", " t10"]
    kinds = [next(kind for kind, style in STYLES.items() if found.startswith(style)) for found, _, _ in spans]
    assert kinds == [kind for kind, _, _ in token_kinds(ANSWER, 3)]
    assert spans[4][1].endswith("drafter: '<b>' 62%, ' t9' 20%")
    assert spans[4][1].startswith("draft 1 of 3: the draft was wrong")
    assert "drafter" not in spans[5][1]  # nothing known of that slot
    assert [";border-left" in style for style, _, _ in spans] == [
        False, True, False, False, True, True, False, True, False,
    ]  # fmt: skip
    assert "8 tokens in 4 verifications, accept length 2.00, chain 3" in html and "&lt;a&gt; (chat)" in html


def test_a_long_answer_is_cut_and_says_so():
    html = token_html(ANSWER, 3, TOKENIZER, most_tokens=4)
    assert len(parse(html)[0]) == 4 and "5 more tokens" in html


def test_an_answer_of_one_token_has_no_verification():
    assert "no verification" in token_html(Walked("x", "s", 2, np.arange(3), ()), 3, TOKENIZER)
