"""Texts of tokens, and their kinds, by hand and on real tokenizers."""

import pytest

from eagle3lab.analysis.token_text import answer_parts, token_classes, token_pieces


@pytest.fixture(scope="module")
def bytes_tokenizer():
    """A byte-level tokenizer without any merge: every character outside ASCII is several tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


@pytest.fixture(scope="module")
def spaces_tokenizer():
    """A tokenizer that writes spaces into its tokens and drops the first one of a text, as SentencePiece does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "▁the": 1, "▁cat": 2, "s": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_a_character_of_several_tokens_is_the_piece_of_its_last(bytes_tokenizer):
    ids = bytes_tokenizer("aé日🙂b", add_special_tokens=False)["input_ids"]
    pieces = token_pieces(bytes_tokenizer, ids)
    assert pieces == ["a", "", "é", "", "", "日", "", "", "", "🙂", "b"]


def test_pieces_join_to_the_text(bytes_tokenizer):
    text = "Größe: 12 km²\n\n日本語 🙂🙂 ok" * 3
    ids = bytes_tokenizer(text, add_special_tokens=False)["input_ids"]
    assert "".join(token_pieces(bytes_tokenizer, ids)) == text


def test_half_a_character_at_the_end_is_shown_as_such(bytes_tokenizer):
    ids = bytes_tokenizer("a日", add_special_tokens=False)["input_ids"][:-1]
    assert "".join(token_pieces(bytes_tokenizer, ids)).startswith("a")
    assert len(token_pieces(bytes_tokenizer, ids)) == 3


def test_spaces_are_kept_where_a_tokenizer_drops_the_first(spaces_tokenizer):
    assert token_pieces(spaces_tokenizer, [1, 2, 3, 2]) == ["the", " cat", "s", " cat"]


def test_specials_are_shown(bytes_tokenizer):
    end = bytes_tokenizer.eos_token_id
    pieces = token_pieces(bytes_tokenizer, [*bytes_tokenizer("hi", add_special_tokens=False)["input_ids"], end])
    assert pieces == ["h", "i", "<|end|>"]
    assert token_classes([1, 2, end], pieces, {end}) == ["word", "word", "special"]


def test_classes_by_hand():
    pieces = ["Take", " ", "12", ",", "\n", "x1", " ²", "```py", "thon", "\n", "a=1", "\n`", "``", " Done"]
    assert token_classes(range(len(pieces)), pieces) == [
        "word", "whitespace", "number", "punctuation", "whitespace", "word", "number",
        "code", "code", "code", "code", "code", "code", "word",
    ]  # fmt: skip


def test_an_open_fence_is_code_to_the_end():
    assert token_classes([0, 1, 2], ["see", "```", "x"]) == ["word", "code", "code"]


def test_parts_of_an_answer():
    pieces = ["<think>", "hm", "</think>", "Yes", ".", "<tool_call>", "{}", "</tool_call>", "ok"]
    assert answer_parts("user: hi", pieces) == [
        "reasoning", "reasoning", "reasoning", "answer", "answer", "tool call", "tool call", "tool call", "answer",
    ]  # fmt: skip


def test_a_prompt_that_opens_the_thoughts():
    assert answer_parts("... assistant\n<think>\n", ["hm", "</think>", "Yes"]) == ["reasoning", "reasoning", "answer"]
    assert answer_parts("a closed <think></think>", ["Yes"]) == ["answer"]


def test_a_marker_of_several_tokens():
    assert answer_parts("", ["<", "think", ">", "a", "</", "think>", "b"]) == ["reasoning"] * 6 + ["answer"]


def test_kimi_calls():
    pieces = ["Well", "<|tool_calls_section_begin|>", "x", "<|tool_calls_section_end|>", "<|im_end|>"]
    assert answer_parts("<think>", pieces[:1]) == ["reasoning"]
    assert answer_parts("", pieces) == ["answer", "tool call", "tool call", "tool call", "answer"]
