"""B1, glaiveai/glaive-function-calling-v2: `system` and `chat`, both plain text.

`system`: "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -" and
then pretty-printed JSON objects one after the other, no list. `chat`: turns `USER:`, `ASSISTANT:` and
`FUNCTION RESPONSE:` set apart by three newlines, answers ending in `<|endoftext|>`; a call is
`<functioncall> {"name": "f", "arguments": '{"k": "v"}'}`: its arguments are JSON in single quotes, so the whole is not.
"""

from __future__ import annotations

import json
import re
from typing import Any

from eagle3lab.data.adapters.base import Conversation, RowError, conversation, mapping_of, text_of
from eagle3lab.data.adapters.tools import json_objects, tools_of
from eagle3lab.data.adapters.turns import Turns, call_of

_TURN = re.compile(r"(?:\A|\n{3,})\s*(USER|ASSISTANT|A|FUNCTION RESPONSE):")
_CALL = re.compile(r'\{\s*"name"\s*:\s*(?P<name>"[^"]*")\s*,\s*"arguments"\s*:\s*\'(?P<arguments>.*)\'\s*\}', re.DOTALL)
_CALL_MARK = "<functioncall>"
_END = "<|endoftext|>"


def adapt_glaive(row: Any, set_name: str) -> Conversation:
    """Row -> Conversation with its tools. The set's own preamble goes where there are tools: the template says it."""
    row = mapping_of(row)
    system = text_of(row.get("system"), "system").removeprefix("SYSTEM:").strip()
    preamble, brace, objects = system.partition("{")
    tools = tools_of(json_objects(brace + objects, "system")) if brace else None
    turns = Turns()
    if system and not tools:
        turns.say("system", system)
    chat = text_of(row.get("chat"), "chat")
    parts = _TURN.split(chat)
    if parts[0].strip():
        raise RowError("unknown_role", f"the chat starts with {parts[0].strip()[:30]!r}")
    for number, (speaker, text) in enumerate(zip(parts[1::2], parts[2::2], strict=True)):
        text = text.replace(_END, "").strip()
        if speaker == "USER":
            turns.say("user", text)
        elif speaker == "FUNCTION RESPONSE":
            turns.result(text)
        else:
            said, called, call = text.partition(_CALL_MARK)
            turns.answer(said.strip(), [glaive_call(call.strip(), f"turn {number}")] if called else None)
    return conversation(row, set_name, turns.messages, tools)


def glaive_call(text: str, where: str) -> tuple[str, Any]:
    """(name, arguments) of a call whose arguments are single-quoted JSON (or, in some rows, plain JSON)."""
    quoted = _CALL.fullmatch(text)
    if not quoted:
        return call_of(text, where)
    arguments = quoted["arguments"]
    for candidate in (arguments, arguments.replace("\\'", "'")):  # an apostrophe may be escaped, which JSON forbids
        try:
            return json.loads(quoted["name"]), json.loads(candidate, strict=False)
        except ValueError as error:
            fault = error
    raise RowError("bad_function_call", f"{where}: arguments: {fault}")
