import json
import re
from html import unescape

import pytest

from eagle3lab.data.answers import render_conversation
from eagle3lab.data.chat import render_text
from eagle3lab.data.spans import MaskError
from eagle3lab.data.view import first_samples, mask_statistics, normal_and_looping, sample_html, samples_html, segments

MESSAGES = [
    {"role": "user", "content": "<script>alert('x')</script> & ünï 日本"},
    {"role": "assistant", "content": "<b>No</b> 日"},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "Because."},
]


def test_the_shown_text_is_the_rendered_text_escaped(chatml):
    ids, spans = render_conversation(chatml, MESSAGES)
    html = sample_html(chatml, ids, spans)
    assert "<script>" not in html and "<b>" not in html
    body = html.split("white-space:pre-wrap", 1)[1].split(">", 1)[1]
    assert unescape(re.sub(r"<[^>]+>", "", body)) == render_text(chatml, MESSAGES, add_generation_prompt=False)
    trained = sum(end - start for start, end in spans)
    assert f"{trained} of {len(ids)} tokens are trained" in html


def test_segments_hold_every_token_once():
    assert segments([1, 2, 3, 4, 5], [[1, 3], [4, 5]]) == [
        (False, [1]),
        (True, [2, 3]),
        (False, [4]),
        (True, [5]),
    ]
    with pytest.raises(MaskError):
        segments([1, 2], [])


def test_long_runs_are_shortened_and_say_so(chatml):
    ids, spans = render_conversation(chatml, MESSAGES[2:])
    assert f"… {spans[0][0] - 4} more tokens" in sample_html(chatml, ids, spans, max_tokens=4)


HOSTILE = [
    "</span></div><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "&lt;b&gt;",
    "\u202eright to left",
    "\x00",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_of_the_data_becomes_markup(chatml, text):
    ids, spans = render_conversation(
        chatml, [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    )
    row = {"id": text, "set": text, "split": "train", "finish_reason": "stop", "input_ids": ids, "loss_spans": spans}
    page = samples_html(chatml, [row])
    tags = set(re.findall(r"<\s*/?\s*(\w+)", page))
    assert tags == {"details", "summary", "div", "p", "span"}
    assert page.count("<span") == page.count("</span>") and page.count("<div") == page.count("</div>")
    assert unescape(re.sub(r"<[^>]+>", "", page)).count(text) == 4  # id, set, question, answer
    assert page.count("unicode-bidi:isolate") == 3  # each run of tokens


def test_masks_in_numbers():
    rows = [
        {"id": "a", "set": "s", "input_ids": [1] * 10, "loss_spans": [[2, 4], [6, 9]], "finish_reason": "stop"},
        {"id": "b", "set": "s", "input_ids": [1] * 10, "loss_spans": [[5, 10]], "finish_reason": "length"},
        {"id": "c", "set": "t", "input_ids": [1] * 4, "loss_spans": [[3, 4]], "finish_reason": "stop"},
    ]
    found = mask_statistics(iter(rows))
    assert found["s"] | {"answer_tokens": None} == {
        "rows": 2, "tokens": 20, "trained": 10, "answers": 3, "open_end": 1, "trained_share": 0.5, "answer_tokens": None
    }  # fmt: skip
    assert (found["s"]["answer_tokens"]["median"], found["s"]["answer_tokens"]["max"]) == (3, 5)
    assert (found["t"]["trained_share"], found["t"]["open_end"]) == (0.25, 0)
    with pytest.raises(MaskError, match="d: the loss mask is all zero"):
        mask_statistics([rows[0] | {"id": "d", "loss_spans": []}])


def test_a_normal_answer_is_shown_before_one_that_loops():
    def row(name, answer, finish):
        return {"id": name, "input_ids": [9, 9, *answer], "loss_spans": [[2, 2 + len(answer)]], "finish_reason": finish}

    looping, cut = row("looping", [1, 2] * 30, "loop"), row("cut", list(range(40)), "length")
    ended_looping = row("ended", [5, 6] * 30 + [0], "stop")
    normal, other = row("normal", [3, 4, 0], "stop"), row("other", [4, 5, 0], "stop")
    assert normal_and_looping(iter([looping, cut, normal, other])) == [normal, looping]
    assert normal_and_looping([ended_looping, cut]) == [cut, ended_looping]
    assert normal_and_looping([normal, other]) == [normal]
    assert normal_and_looping([]) == []


def test_the_first_sample_of_each_set_is_its_own_or_the_datas_answer(tmp_path):
    prompt = {"id": "a-1", "set": "a", "split": "train", "prompt_ids": [1, 2], "n_prompt": 2}
    native = {"id": "n-1", "set": "n", "split": "train", "input_ids": [1, 2], "loss_spans": [[1, 2]]}
    for name, prompts, tokenized in [
        ("a", [prompt, prompt | {"id": "a-2", "reference_ids": [3, 4], "reference_cut": True}], None),
        ("b", [prompt], None),
        ("n", [], [native]),
    ]:
        (tmp_path / name).mkdir()
        for file, rows in (("prompts.jsonl", prompts), ("tokenized.jsonl", tokenized)):
            if rows is not None:
                (tmp_path / name / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    reference, own = first_samples(tmp_path, ["a", "b", "n"])
    assert reference == {
        "id": "a-2-reference", "set": "a", "split": "train", "origin": "reference", "input_ids": [1, 2, 3, 4],
        "loss_spans": [[2, 4]], "finish_reason": "length",
    }  # fmt: skip
    assert own == native
