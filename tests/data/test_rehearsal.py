"""The rehearsal's target and rows: of Kimi's kind, in the columns of the ten sets."""

import json

import pytest
from case_rows import ROWS

from eagle3lab.data.adapters import ADAPTERS
from eagle3lab.data.chat import check_as_served, end_token_ids, load_tokenizer, render_prompt
from eagle3lab.data.rehearsal.rows import CASE, set_texts, write_rows
from eagle3lab.data.rehearsal.target import build_target, write_tokenizer
from eagle3lab.data.rehearsal.tokenizer import END
from eagle3lab.data.sources import SETS, open_rows, set_spec
from eagle3lab.data.targets import context_length, resolve_target


def test_its_rows_have_the_columns_of_the_case(tmp_path):
    files = write_rows(tmp_path, 3)
    assert tuple(files) == CASE == tuple(ROWS)
    for name, path in files.items():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        known = ROWS[name]
        for row in rows:
            assert {key: type(value) for key, value in row.items()} == {k: type(v) for k, v in known.items()}, name
        found = [ADAPTERS[SETS[name].adapter](row, name) for row in rows]
        assert len({one.id for one in found}) == 3
        said = [[m["role"] for m in one.messages if m["role"] != "system"][:2] for one in found]
        assert said == [["user", "assistant"]] * 3, name


def test_all_questions_differ_and_too_many_are_refused(tmp_path):
    texts = set_texts(write_rows(tmp_path, 64))
    asked = []
    for text in texts:
        with open_rows(set_spec(text)) as rows:
            adapter = ADAPTERS[set_spec(text).adapter]
            read = [adapter(row, "s") for row in rows]
            asked += [next(m["content"] for m in one.messages if m["role"] == "user") for one in read]
    assert len(asked) == 640 == len(set(asked))
    with pytest.raises(ValueError, match="count=65"):
        write_rows(tmp_path, 65)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return resolve_target(build_target(tmp_path_factory.mktemp("rehearsal") / "target"))


def test_its_target_is_of_kimis_kind(target):
    config = json.loads((target / "config.json").read_text())
    assert config["architectures"] == ["DeepseekV3ForCausalLM"] and config["vocab_size"] == 163840
    assert config["kv_lora_rank"] and config["n_routed_experts"] > config["num_experts_per_tok"]
    assert context_length(target) == 2048
    tokenizer = load_tokenizer(target, trust_remote_code=True)
    check_as_served(tokenizer)
    assert end_token_ids(tokenizer, target) == {163585, 163586}
    ids = render_prompt(tokenizer, [{"role": "user", "content": "Hi"}])
    # <|im_user|> user <|im_middle|> Hi <|im_end|> <|im_assistant|> assistant <|im_middle|> <think>
    text = [*b"user", 163601, *b"Hi", 163586, 163588, *b"assistant", 163601, 163606]
    assert ids == [163587, *text]


def test_its_answers_are_texts_that_differ_and_some_end(target):
    from eagle3lab.engines.base import Request
    from eagle3lab.engines.embedded import EmbeddedEngine

    tokenizer = load_tokenizer(target, trust_remote_code=True)
    engine = EmbeddedEngine(target, end_ids={163585, 163586})
    asked = [f"What is {one} + {7 * one}?" for one in range(6)]
    asked += [f"Write a poem about {one}." for one in ("sea", "sun", "wood", "stone", "fire", "night", "rain", "snow")]
    prompts = [render_prompt(tokenizer, [{"role": "user", "content": one}]) for one in asked]
    requests = [Request(str(number), ids, 48) for number, ids in enumerate(prompts)]
    answers = list(engine.generate(requests, 16))
    texts = [tokenizer.decode(one.output_ids) for one in answers]
    assert len(set(texts)) > 8 and not any("[UNK]" in text for text in texts)
    assert {one.finish_reason for one in answers} == {"stop", "length"}


def test_the_slow_tokenizer_of_a_folder_is_code_that_runs_only_when_allowed(tmp_path):
    folder = write_tokenizer(tmp_path / "kimi")
    with pytest.raises((ValueError, OSError)):
        load_tokenizer(folder)
    tokenizer = load_tokenizer(folder, trust_remote_code=True)
    assert not tokenizer.is_fast
    assert end_token_ids(tokenizer, folder) == {163585, END}
    check_as_served(tokenizer)
