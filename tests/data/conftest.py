"""Shared by the data room's tests: a byte-level tokenizer with a ChatML template, and the glassllm target.

Packages come through the cache (EAGLE3LAB_CACHE, else the user's), so that only the first run downloads them.
"""

import pytest

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = [
    "How do I cook rice?",
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return x",
    "ünïcödé 日本",
]


def _make_tokenizer(template=CHATML):
    """A byte-level BPE tokenizer of 400 ids, trained here: any text survives encoding and decoding."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=template)


@pytest.fixture(scope="session")
def make_tokenizer():
    return _make_tokenizer


@pytest.fixture(scope="session")
def chatml():
    return _make_tokenizer()


@pytest.fixture(scope="session")
def glass_folder():
    from eagle3lab.data.targets import resolve_target

    return resolve_target("glassllm/en")


@pytest.fixture(scope="session")
def glass(glass_folder):
    from eagle3lab.data.chat import load_tokenizer

    return load_tokenizer(glass_folder)
