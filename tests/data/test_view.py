import re
from html import unescape

import pytest

from eagle3lab.data.chat import render_conversation, render_text
from eagle3lab.data.spans import MaskError
from eagle3lab.data.view import sample_html, segments

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
    assert unescape(re.sub(r"<[^>]+>", "", body)) == render_text(
        chatml, MESSAGES, add_generation_prompt=False
    )
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
