"""Answers as samples, above all under a template that blanks history: Kimi-K2.5's rules on a slow tokenizer."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.data.answers import HistoryRewritten, render_conversation, render_samples
from eagle3lab.data.borders import token_borders
from eagle3lab.data.chat import (
    ChatError,
    check_as_served,
    render_prompt,
    render_text,
    thinking_options,
    token_ids,
)
from eagle3lab.data.rehearsal.tokenizer import END, END_THINK, THINK, KimiStandIn

OFF = thinking_options("off")
ENDS = {163585, END}
relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
# texts that a template does not change at their ends, with pieces that like to run across borders
words = st.text(st.sampled_from("ab. \n<>/`日é"), min_size=1, max_size=12).map(lambda t: f"x{t}x")
WEATHER = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def kimi():
    return KimiStandIn()


def _decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _user(text):
    return {"role": "user", "content": text}


def _answer(text, reasoning="", calls=()):
    message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def _call(number, **arguments):
    key = f"functions.weather:{number}"
    return {"id": key, "type": "function", "function": {"name": "weather", "arguments": arguments}}


def _result(number, text):
    return {"role": "tool", "name": "weather", "tool_call_id": f"functions.weather:{number}", "content": text}


def _trained(tokenizer, sample):
    return [_decode(tokenizer, sample.input_ids[a:b]) for a, b in sample.loss_spans]


def test_the_stand_in_renders_as_kimi_does(kimi):
    # the two renderings that the facts on Kimi-K2.5 give
    assert render_text(kimi, [_user("Hi")], True) == (
        "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    )
    assert render_text(kimi, [_user("2+2?"), _answer("4.", "Two and two.")], False) == (
        "<|im_user|>user<|im_middle|>2+2?<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>4.<|im_end|>"
    )
    assert render_text(kimi, [_user("Hi")], True, options=OFF).endswith("<think></think>")
    turns = [_user("Rain?"), _answer("", "Look.", [_call(0, city="Oslo")]), _result(0, '{"rain": true}')]
    assert render_text(kimi, turns, True, WEATHER) == (
        f"<|im_system|>tool_declare<|im_middle|>{json.dumps(WEATHER)}<|im_end|>"
        "<|im_user|>user<|im_middle|>Rain?<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think>Look.</think><|tool_calls_section_begin|><|tool_call_begin|>"
        'functions.weather:0<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>'
        "<|im_end|>"
        '<|im_system|>weather<|im_middle|>## Return of functions.weather:0\n{"rain": true}<|im_end|>'
        "<|im_assistant|>assistant<|im_middle|><think>"
    )
    assert token_ids(kimi, "<think></think><|im_end|>") == [THINK, END_THINK, END]


class OwnTemplate(KimiStandIn):
    def apply_chat_template(self, conversation, tokenize=True, **options):
        found = super().apply_chat_template(conversation, tokenize=tokenize, **options)
        return [163584, *found] if tokenize else found


class OwnEncode(KimiStandIn):
    def encode(self, text, **options):
        return super().encode(text, **options) if options or not text else list(text.encode())


@pytest.mark.parametrize(
    ("other", "way"), [(OwnTemplate, "apply_chat_template"), (OwnEncode, "encode without options")]
)
def test_a_tokenizer_that_has_other_ids_where_a_server_asks_it_is_refused(kimi, chatml, other, way):
    check_as_served(kimi)
    check_as_served(chatml)
    with pytest.raises(ChatError, match=f"own {way} gives other ids than ours"):
        check_as_served(other())


def test_reasoning_that_the_template_blanks_is_kept_in_a_sample_of_its_own(kimi):
    messages = [_user("2+2?"), _answer("4.", "Two and two."), _user("And 3+3?"), _answer("6.", "Three.")]
    with pytest.raises(HistoryRewritten, match="message 1: the template leaves out its reasoning"):
        render_conversation(kimi, messages, ENDS)
    first, second = render_samples(kimi, messages, ENDS)
    assert (first.turn, second.turn) == (1, 3)
    assert _trained(kimi, first) == ["Two and two.</think>4.<|im_end|>"]
    assert _decode(kimi, first.input_ids) == (
        "<|im_user|>user<|im_middle|>2+2?<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
        "Two and two.</think>4.<|im_end|>"
    )
    # the second is answered from the history as the server shows it: without the first thought
    assert _decode(kimi, second.input_ids) == (
        "<|im_user|>user<|im_middle|>2+2?<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think></think>4.<|im_end|>"
        "<|im_user|>user<|im_middle|>And 3+3?<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
        "Three.</think>6.<|im_end|>"
    )
    assert second.input_ids[: second.loss_spans[0][0]] == render_prompt(kimi, messages[:3])


def test_thoughts_before_calls_are_part_of_the_prompt_of_the_answer_after_them(kimi):
    messages = [
        _user("Rain?"),
        _answer("", "Look.", [_call(0, city="Oslo")]),
        _result(0, "yes"),
        _answer("Yes.", "So."),
    ]
    call, answer = render_samples(kimi, messages, ENDS, WEATHER)
    assert _trained(kimi, call) == [
        "Look.</think><|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        '<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
    ]
    assert _trained(kimi, answer) == ["So.</think>Yes.<|im_end|>"]
    prompt = _decode(kimi, answer.input_ids[: answer.loss_spans[0][0]])
    assert prompt == render_text(kimi, messages[:3], True, WEATHER)
    assert "<think>Look.</think>" in prompt  # the final answer would blank it, but was not there yet


def test_without_thinking_one_sample_holds_all_answers(kimi):
    messages = [_user("a"), _answer("b"), _user("c"), _answer("d")]
    (sample,) = render_samples(kimi, messages, ENDS, options=OFF)
    assert sample.turn is None
    assert _trained(kimi, sample) == ["b<|im_end|>", "d<|im_end|>"]
    assert _decode(kimi, sample.input_ids) == render_text(kimi, messages, False, options=OFF)


def test_a_thought_that_the_template_has_no_place_for_is_an_error_not_a_loss(kimi, chatml):
    messages = [_user("2+2?"), _answer("4.", "Two and two.")]
    with pytest.raises(ChatError, match="message 1: the template leaves out its reasoning"):
        render_samples(kimi, messages, ENDS, options=OFF)
    with pytest.raises(ChatError, match="leaves out its reasoning"):
        render_samples(chatml, messages)
    with pytest.raises(ChatError, match="leaves out its call of weather"):
        render_samples(chatml, [_user("Rain?"), _answer("Let me see.", calls=[_call(0)])])


def test_a_template_that_drops_what_is_said_is_refused(make_tokenizer):
    tokenizer = make_tokenizer("{% for m in messages if m['role'] != 'system' %}{{ m['content'] }}{% endfor %}")
    with pytest.raises(ChatError, match=r"leaves out message 0 \(system\)"):
        render_prompt(tokenizer, [{"role": "system", "content": "Be kind."}, _user("Hi")])
    with pytest.raises(ChatError, match="leaves out the tools: let a system text"):
        render_prompt(tokenizer, [_user("Is there a weather?")], WEATHER)


# DeepSeek-R1's way: the prompt opens the block, a finished answer shows nothing of it
def test_a_thought_whose_closing_cannot_be_seen_is_refused(make_tokenizer):
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}:{{ m['content'] }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant:<think>\n{% endif %}"
    )
    tokenizer = make_tokenizer(template)
    with pytest.raises(ChatError, match="does not render an answer after its own prompt"):
        render_samples(tokenizer, [_user("a"), _answer("b", "c")])


# Qwen3's way: the prompt opens nothing, the last answer shows its thought, earlier ones lose it
QWEN = (
    "{% set last = namespace(user=0) %}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.index0 > last.user %}"
    "<think>\n{{ m.get('reasoning_content') or '' }}\n</think>\n\n{% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_template_that_shows_the_last_thought_gives_a_sample_an_answer(make_tokenizer):
    tokenizer = make_tokenizer(QWEN)
    messages = [_user("a"), _answer("b", "one"), _user("c"), _answer("d", "two")]
    first, second = render_samples(tokenizer, messages)
    assert _trained(tokenizer, first) == ["<think>\none\n</think>\n\nb<|im_end|>"]
    assert _trained(tokenizer, second) == ["<think>\ntwo\n</think>\n\nd<|im_end|>"]
    assert "one" not in _decode(tokenizer, second.input_ids)
    (single,) = render_samples(tokenizer, messages[:2])
    assert single.turn is None


turns = st.lists(st.tuples(words, words, st.one_of(st.just(""), words), st.booleans()), min_size=1, max_size=4)


def _conversation(turns, system):
    messages, calls = ([{"role": "system", "content": system}] if system else []), 0
    for question, answer, thought, called in turns:
        messages.append(_user(question))
        if called:
            messages += [_answer("", thought, [_call(calls, city=question)]), _result(calls, answer)]
            calls += 1
        messages.append(_answer(answer, thought))
    return messages


def _generated(message):
    """What Kimi generates for a message after `<think>`, written down by the rules of its template."""
    calls = "".join(
        f"<|tool_call_begin|>{c['id']}<|tool_call_argument_begin|>"
        f"{json.dumps(c['function']['arguments'], ensure_ascii=False)}<|tool_call_end|>"
        for c in message.get("tool_calls", [])
    )
    calls = calls and f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"
    return f"{message.get('reasoning_content', '')}</think>{message['content']}{calls}<|im_end|>"


@relaxed
@given(turns=turns, system=st.one_of(st.just(""), words))
def test_spans_cover_exactly_what_was_generated_and_prompts_are_the_servers(kimi, turns, system):
    messages = _conversation(turns, system)
    samples = render_samples(kimi, messages, ENDS, WEATHER)
    generated = [_generated(m) for m in messages if m["role"] == "assistant"]
    assert [text for sample in samples for text in _trained(kimi, sample)] == generated
    for sample in samples:
        if sample.turn is None:
            text = render_text(kimi, messages, False, WEATHER)
        else:
            text = render_text(kimi, messages[: sample.turn], True, WEATHER) + _generated(messages[sample.turn])
            assert sample.input_ids[: sample.loss_spans[0][0]] == render_prompt(kimi, messages[: sample.turn], WEATHER)
        assert _decode(kimi, sample.input_ids) == text
        assert sample.input_ids == token_ids(kimi, text)
        assert all(sample.input_ids[end - 1] == END for _, end in sample.loss_spans)


@relaxed
@given(turns=turns)
def test_the_prompt_ids_are_those_of_the_tokenizers_own_chat_template(kimi, chatml, turns):
    messages = _conversation(turns, "")[:-1]
    for tokenizer, tools in ((kimi, WEATHER), (chatml, None)):
        if tools is None:
            messages = [m for m in messages if m["role"] == "user"]
        served = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=True, add_generation_prompt=True, return_dict=False
        )
        assert render_prompt(tokenizer, messages, tools) == list(served)


@relaxed
@given(st.lists(st.one_of(words, st.just("<|im_end|>"), st.just("<|im_user|>")), min_size=1, max_size=8), st.data())
def test_borders_agree_with_tokenising_every_beginning(kimi, parts, data):
    text = "".join(parts)
    borders = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    whole = token_ids(kimi, text)
    heads = [token_ids(kimi, text[:border]) if border else [] for border in borders]
    sound = all(whole[: len(head)] == head for head in heads)
    if sound:
        assert token_borders(kimi, text, borders) == (whole, [len(head) for head in heads])
    else:
        with pytest.raises(ChatError, match="tokens run across the border"):
            token_borders(kimi, text, borders)


def test_borders_of_a_long_text_are_found_in_linear_time(kimi):
    lengths = []

    class Counting(KimiStandIn):
        def _tokenize(self, text, **options):
            lengths.append(len(text))
            return super()._tokenize(text, **options)

    messages = [m for n in range(60) for m in (_user(f"question {n} " * 20), _answer(f"answer {n} " * 20))]
    counting = Counting()
    ids, spans = render_conversation(counting, messages, ENDS, options=OFF)
    assert len(spans) == 60
    whole = len(render_text(kimi, messages, False, options=OFF))
    assert sum(lengths) < 4 * whole  # tokenising every beginning anew would be 60 times the whole
