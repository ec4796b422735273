"""Second turns hold the first answer, as a chat would send it."""

from types import SimpleNamespace

from eagle3lab.analysis.turns import ask_second_turns
from eagle3lab.engines.base import Completion


class Tokenizer:
    """A token a character; the template writes roles in brackets."""

    def apply_chat_template(self, messages, tools, tokenize, add_generation_prompt):
        return "".join(f"[{m['role']}]{m['content']}" for m in messages) + "[assistant]"

    def __call__(self, text, **options):
        return {"input_ids": [ord(c) for c in text]}

    def decode(self, ids):
        return "".join(map(chr, ids))


def test_the_first_answer_is_in_the_prompt_without_its_end_token():
    asked = []

    def generate(requests, batch_size):
        asked.extend(requests)
        for request in requests:
            yield Completion(request.id, request.input_ids, [ord("4"), 1], "stop", 0.1)

    rows = [
        {"id": "mt-1", "set": "mt", "messages": [{"role": "user", "content": "2+2?"}], "later_turns": ["Sure?"],
         "prompt_ids": [50, 51]},
        {"id": "one", "set": "other", "messages": [{"role": "user", "content": "Hi"}], "prompt_ids": [52]},
    ]  # fmt: skip
    (second,) = ask_second_turns(SimpleNamespace(generate=generate, end_ids=frozenset([1])), rows, Tokenizer(), 16)
    assert [(r.id, r.input_ids, r.max_tokens, r.temperature) for r in asked] == [("mt-1", [50, 51], 16, 0.0)]
    text = "[user]2+2?[assistant]4[user]Sure?[assistant]"
    assert second["prompt_ids"] == [ord(c) for c in text] and second["n_prompt"] == len(text)
    assert (second["id"], second["set"], second["later_turns"]) == ("mt-1-turn2", "mt", [])
