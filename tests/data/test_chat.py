from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.data.answers import render_conversation
from eagle3lab.data.chat import (
    ChatError,
    end_token_ids,
    load_tokenizer,
    render_prompt,
    render_text,
    special_token_in,
    special_tokens,
)
from eagle3lab.data.spans import MaskError, check_spans

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(lambda t: "<|" not in t)
pairs = st.lists(st.tuples(words, words), min_size=1, max_size=3)
relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def _messages(pairs):
    rows = [[{"role": "user", "content": u}, {"role": "assistant", "content": a}] for u, a in pairs]
    return [message for row in rows for message in row]


def _decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@relaxed
@given(pairs=pairs)
def test_decoding_gives_the_template_text_and_spans_are_the_answers_with_their_end(chatml, pairs):
    messages = _messages(pairs)
    ids, spans = render_conversation(chatml, messages)
    assert _decode(chatml, ids) == render_text(chatml, messages, add_generation_prompt=False)
    assert [_decode(chatml, ids[a:b]) for a, b in spans] == [answer + "<|im_end|>" for _, answer in pairs]
    assert all(ids[b - 1] == chatml.eos_token_id for _, b in spans)


@relaxed
@given(pairs=pairs)
def test_a_prompt_is_what_stands_before_the_first_span(chatml, pairs):
    messages = _messages(pairs)
    ids, spans = render_conversation(chatml, messages)
    prompt = render_prompt(chatml, messages[:1])
    assert ids[: spans[0][0]] == prompt
    assert _decode(chatml, prompt) == render_text(chatml, messages[:1], add_generation_prompt=True)


def test_the_glass_template_keeps_token_borders(glass):
    messages = _messages([("Alice was beginning to get very tired", "said the Cat."), ("What", "Nothing more.")])
    ids, spans = render_conversation(glass, messages)
    assert [_decode(glass, ids[a:b]) for a, b in spans] == ["said the Cat.<eos>", "Nothing more.<eos>"]
    assert _decode(glass, render_prompt(glass, messages[:1])) == "Alice was beginning to get very tired\n"


def test_an_empty_conversation_is_refused(chatml):
    with pytest.raises(ChatError, match="empty conversation"):
        render_prompt(chatml, [])
    with pytest.raises(ChatError, match="empty conversation"):
        render_conversation(chatml, [])


def test_all_zero_and_all_one_masks_are_refused(chatml):
    with pytest.raises(MaskError, match="all zero"):
        render_conversation(chatml, [{"role": "user", "content": "Hi"}])
    with pytest.raises(ChatError, match="answer without a prompt"):
        render_conversation(chatml, [{"role": "assistant", "content": "Hi"}])
    with pytest.raises(MaskError, match="all one"):
        check_spans(3, [[0, 3]])


@pytest.mark.parametrize("spans", [[[2, 2]], [[3, 2]], [[0, 5]], [[2, 3], [1, 2]], [[1, 3], [2, 4]], [[-1, 2]]])
def test_impossible_spans_are_refused(spans):
    with pytest.raises(MaskError, match="row: loss span"):
        check_spans(4, spans)


def test_a_template_that_rewrites_history_is_refused(make_tokenizer):
    # as reasoning templates do: only the last answer keeps its text
    forgets = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
        "{{ m['content'] if loop.last or m['role'] == 'user' else 'gone' }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = make_tokenizer(forgets)
    assert render_conversation(tokenizer, _messages([("a", "b")]))[1]
    with pytest.raises(ChatError, match="rewrites earlier messages"):
        render_conversation(tokenizer, _messages([("a", "b"), ("c", "d")]))


def test_tokens_across_the_border_are_refused(make_tokenizer):
    joined = "{% for m in messages %}{{ m['content'] }}{% endfor %}<|im_end|>"
    tokenizer = make_tokenizer(joined.replace("<|im_end|>", "{% if not add_generation_prompt %}<|im_end|>{% endif %}"))
    with pytest.raises(ChatError, match="border|rewrites"):
        render_conversation(tokenizer, _messages([("The qu", "ick brown fox")]))


def test_an_end_token_inside_an_answer_is_refused_and_found_before(chatml):
    messages = _messages([("Hi", "one<|im_end|>two")])
    with pytest.raises(ChatError, match="holds 2 end tokens"):
        render_conversation(chatml, messages)
    assert special_token_in(special_tokens(chatml), messages) == "<|im_end|>"
    assert special_token_in(special_tokens(chatml), messages[:1]) is None


def test_the_words_of_a_refusing_template_are_kept(make_tokenizer):
    tokenizer = make_tokenizer("{{ raise_exception('Only user turns please') }}")
    with pytest.raises(ChatError, match=r"refuses the messages \(user\): Only user turns please"):
        render_prompt(tokenizer, [{"role": "user", "content": "Hi"}])


def test_end_tokens_come_from_tokenizer_and_generation_config(chatml, glass, glass_folder):
    eos = chatml.eos_token_id
    assert end_token_ids(chatml) == {eos}
    assert end_token_ids(chatml, {"eos_token_id": [7, eos]}) == {7, eos}
    assert end_token_ids(chatml, SimpleNamespace(eos_token_id=0)) == {0, eos}
    assert end_token_ids(glass, glass_folder) == {3}
    with pytest.raises(ChatError, match="end token"):
        end_token_ids(SimpleNamespace(eos_token_id=None))


def test_a_tokenizer_without_a_template_is_refused(tmp_path, make_tokenizer):
    make_tokenizer(None).save_pretrained(tmp_path)
    with pytest.raises(ChatError, match="no chat template"):
        load_tokenizer(tmp_path)
