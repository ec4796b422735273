"""A stand-in for Kimi-K2.5's tokenizer: slow (pure Python, no offsets), its special ids, a template of its rules.

No registry carries the real vocabulary: below 163584 the ids are bytes and a few longer pieces. The template is
written from the published behaviour: everything up to the last answer without tool calls has an empty think block.
This file is copied into the target's folder, as Kimi's tokenizer lies in its own: it imports nothing of the package.
"""

import base64
from pathlib import Path

from transformers import AddedToken, PreTrainedTokenizer

SPECIALS = {
    163584: "[BOS]", 163585: "[EOS]", 163586: "<|im_end|>", 163587: "<|im_user|>", 163588: "<|im_assistant|>",
    163594: "<|im_system|>", 163601: "<|im_middle|>", 163838: "[UNK]", 163839: "[PAD]",
}  # fmt: skip
NOT_SPECIAL = {
    163595: "<|tool_calls_section_begin|>", 163596: "<|tool_calls_section_end|>", 163597: "<|tool_call_begin|>",
    163598: "<|tool_call_argument_begin|>", 163599: "<|tool_call_end|>", 163606: "<think>", 163607: "</think>",
}  # fmt: skip
END, THINK, END_THINK = 163586, 163606, 163607
# after the 256 bytes: pieces that would run across a careless border, and a few ordinary ones
PIECES = [b"\n\n", b"  ", b" the", b"ing", b". ", b"```", b"</", b">\n", b"\xe6\x97\xa5"]

TEMPLATE = """
{%- macro calls(m) -%}
{%- if m.get('tool_calls') -%}<|tool_calls_section_begin|>
{%- for c in m['tool_calls'] -%}
<|tool_call_begin|>{{ c['id'] }}<|tool_call_argument_begin|>
{%- if c['function']['arguments'] is string -%}{{ c['function']['arguments'] }}
{%- else -%}{{ c['function']['arguments'] | tojson }}{%- endif -%}
<|tool_call_end|>
{%- endfor -%}
<|tool_calls_section_end|>{%- endif -%}
{%- endmacro -%}
{%- set last = namespace(at=-1) -%}
{%- for m in messages -%}
{%- if m['role'] == 'assistant' and not m.get('tool_calls') -%}{%- set last.at = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{%- endif -%}
{%- for m in messages -%}
{%- if m['role'] == 'user' -%}<|im_user|>user<|im_middle|>{{ m['content'] }}
{%- elif m['role'] == 'assistant' -%}
<|im_assistant|>assistant<|im_middle|>
{%- if loop.index0 <= last.at -%}<think></think>
{%- else -%}<think>{{ m.get('reasoning_content') or '' }}</think>{%- endif -%}
{{ m['content'] or '' }}{{ calls(m) }}
{%- elif m['role'] == 'tool' -%}
<|im_system|>{{ m['name'] or 'tool' }}<|im_middle|>{{ '## Return of ' + m['tool_call_id'] + '\\n' + m['content'] }}
{%- else -%}<|im_system|>system<|im_middle|>{{ m['content'] }}
{%- endif -%}
<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>
{%- if thinking is defined and thinking is false -%}<think></think>{%- else -%}<think>{%- endif -%}
{%- endif -%}
"""


class KimiStandIn(PreTrainedTokenizer):
    """Longest piece first, over the bytes of the text; a token is written as its bytes in Latin-1."""

    vocab_files_names = {"vocab_file": "tiktoken.model"}  # a piece in base64 and its id, a line each
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file=None, **kwargs):
        lines = Path(vocab_file).read_text().splitlines() if vocab_file else []
        pieces = [base64.b64decode(line.split()[0]) for line in lines] or [bytes([b]) for b in range(256)] + PIECES
        self._ids = {piece.decode("latin-1"): i for i, piece in enumerate(pieces)}
        self._pieces = {i: piece for piece, i in self._ids.items()}
        self._longest = max(map(len, self._ids))
        added = {i: AddedToken(t, special=True, normalized=False) for i, t in SPECIALS.items()}
        added |= {i: AddedToken(t, special=False, normalized=False) for i, t in NOT_SPECIAL.items()}
        kwargs["added_tokens_decoder"] = added
        defaults = {"bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
        super().__init__(**defaults | {"chat_template": TEMPLATE} | kwargs)

    @property
    def vocab_size(self):
        return 163840

    def get_vocab(self):
        return self._ids | self.added_tokens_encoder

    def _tokenize(self, text, **kwargs):
        raw, at, tokens = text.encode("utf-8").decode("latin-1"), 0, []
        while at < len(raw):
            size = next(n for n in range(self._longest, 0, -1) if raw[at : at + n] in self._ids)
            tokens.append(raw[at : at + size])
            at += size
        return tokens

    def _convert_token_to_id(self, token):
        return self._ids.get(token, 163838)

    def _convert_id_to_token(self, index):
        return self._pieces.get(index, "[UNK]")

    def convert_tokens_to_string(self, tokens):
        parts, raw = [], ""
        for token in [*tokens, ""]:
            if token in self.added_tokens_encoder or not token:
                parts += [raw.encode("latin-1").decode("utf-8", "replace"), token]
                raw = ""
            else:
                raw += token
        return "".join(parts)

    def save_vocabulary(self, save_directory, filename_prefix=None):
        return ()
