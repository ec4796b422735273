"""Collects a conversation's messages: answers with thoughts and calls, results paired with the calls they answer."""

from __future__ import annotations

import json
from typing import Any

from eagle3lab.data.adapters.base import Message, RowError
from eagle3lab.data.adapters.thoughts import split_thought


class Turns:
    """Messages in the order they are added.

    Calls are named `functions.NAME:NUMBER`, counted through the conversation (Kimi's form; other templates take any
    id), and results answer the open calls in their order.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._calls = 0
        self._open: list[tuple[str, str]] = []

    def say(self, role: str, text: str) -> None:
        """A turn of the system or the user."""
        self.messages.append({"role": role, "content": text})

    def answer(self, text: str, calls: list[tuple[str, Any]] | None = None, reasoning: str = "") -> None:
        """A turn of the assistant. Calls are (name, arguments); a thought at the head of the text is split off.

        A thought that is never closed was cut off: the turn then says nothing, and the conversation ends before it.
        """
        if not reasoning:
            reasoning, text = split_thought(text)
        message: Message = {"role": "assistant", "content": text}
        if reasoning:
            message["reasoning_content"] = reasoning
        self._open = []
        for name, arguments in calls or []:
            key = f"functions.{name}:{self._calls}"
            self._calls += 1
            self._open.append((key, name))
            call = {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}
            message.setdefault("tool_calls", []).append(call)
        self.messages.append(message)

    def result(self, text: str) -> None:
        """What a called tool gave back."""
        key, name = self._open.pop(0) if self._open else ("", "tool")
        self.messages.append({"role": "tool", "name": name, "tool_call_id": key, "content": text})


def call_of(value: Any, where: str) -> tuple[str, Any]:
    """(name, arguments) of a call written as an object or JSON text, `{"name", "arguments"}` or OpenAI's
    `{"function": {...}}`; arguments that are JSON text are read."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise RowError("bad_function_call", f"{where}: {error}") from error
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise RowError("bad_function_call", f"{where} has no name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError as error:
            raise RowError("bad_function_call", f"{where}: arguments: {error}") from error
    return value["name"], arguments
