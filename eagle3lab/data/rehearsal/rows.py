"""Short made-up rows for the case's ten sets, in exactly the columns that their owners publish."""

import json
from collections.abc import Callable
from pathlib import Path

from eagle3lab.data.sources import SETS
from eagle3lab.workbench.files import write_text_atomic

CASE = tuple(SETS)[:10]  # A1 to B8
_THINGS = ("bridge", "river", "engine", "garden", "lighthouse", "library", "market", "mountain", "violin", "window",
           "harbour", "clock", "forest", "train", "kitchen", "island")  # fmt: skip
_ASKED = ("Explain how a {} is made.", "What is a {} good for, in short?", "Write two lines about a {}.",
          "Compare a {} with a house, please.")  # fmt: skip


def write_rows(folder: str | Path, count: int = 12) -> dict[str, Path]:
    """Writes `count` rows of every set, as JSON lines; set name -> file. At most 64: then questions repeat."""
    if not 1 <= count <= len(_THINGS) * len(_ASKED):
        raise ValueError(f"count={count}: 1 to {len(_THINGS) * len(_ASKED)} rows differ")
    files = {}
    for place, name in enumerate(CASE):
        rows = [_ROW[name](_question(number, place), number) for number in range(count)]
        files[name] = Path(folder) / f"{name}.jsonl"
        write_text_atomic(files[name], "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return files


def set_texts(files: dict[str, Path]) -> list[str]:
    """The items of the parameter `sets` that read these files."""
    return [f"{name}:{SETS[name].adapter}:{path}" for name, path in files.items()]


def _question(number: int, place: int) -> str:
    """Another one for every row, and for the same row of every set."""
    thing = _THINGS[(number + place) % len(_THINGS)]
    return _ASKED[number // len(_THINGS)].format(thing) + f" (set {place + 1})"


def _deepswe_kimi(question: str, number: int) -> dict:
    call = "I look first.\n\n<function=bash>\n<parameter=command>ls -a</parameter>\n</function>"
    return {"messages": json.dumps([
        {"role": "system", "content": "You are a programmer."},
        {"role": "user", "content": question},
        {"role": "assistant", "content": call},
        {"role": "user", "content": f"Exit code: 0\nExecution output of [bash]:\nmain{number}.py"},
        {"role": "assistant", "content": "Done.\n\n<function=finish>\n</function>"},
    ])}  # fmt: skip


def _kimi_2000x(question: str, number: int) -> dict:
    return {"problem": question, "thinking": f"That is question {number}.", "solution": f"It is number {number}."}


def _glaive(question: str, number: int) -> dict:
    tool = {"name": "look_up", "description": "Look up", "parameters": {"type": "object", "properties": {}}}
    system = "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
    chat = f"USER: {question}\n\n\nASSISTANT: <functioncall> " + '{"name": "look_up", "arguments": \'{}\'} '
    chat += f'<|endoftext|>\n\n\nFUNCTION RESPONSE: {{"found": {number}}}\n\n\nASSISTANT: Found. <|endoftext|>\n\n\n'
    return {"system": system + json.dumps(tool, indent=4), "chat": chat}


def _opencode(question: str, number: int) -> dict:
    return {
        "id": f"{number:06x}", "input": question, "output": "```python\nprint(1)\n```", "domain": "generic",
        "generation_algorithm": "self-instruct", "llm_judgement": "{}", "unit_tests": "[]",
        "tests_execution_status": "[]",
        "average_test_score": "0.5" if number == 0 else "0.9",  # the first is below what the case keeps
    }  # fmt: skip


def _evol_instruct(question: str, number: int) -> dict:
    return {"instruction": question, "response": f"def answer(): return {number}"}


def _mixture_of_thoughts(question: str, number: int) -> dict:
    answer = f"<think>\nI count.\n</think>\nIt is {number}."
    said = [{"content": question, "role": "user"}, {"content": answer, "role": "assistant"}]
    return {"messages": said, "num_tokens": 21, "source": "made-up"}


def _openthoughts(question: str, number: int) -> dict:
    thought = "<|begin_of_thought|>\n\nI count.\n\n<|end_of_thought|>\n\n"
    answer = f"{thought}<|begin_of_solution|>\n\n\\boxed{{{number}}}\n\n<|end_of_solution|>"
    said = [{"from": "user", "value": question}, {"from": "assistant", "value": answer}]
    return {"system": "Your role as an assistant involves thoroughly exploring questions.", "conversations": said}


def _ultrachat(question: str, number: int) -> dict:
    said = [question, f"In {1900 + number}.", "And where was that?", "At home."]
    roles = ("user", "assistant") * 2
    messages = [{"content": text, "role": role} for text, role in zip(said, roles, strict=True)]
    return {"prompt": question, "prompt_id": f"{number:064x}", "messages": messages}


def _sharegpt(question: str, number: int) -> dict:
    said = [{"from": "human", "value": question}, {"from": "gpt", "value": f"A summary, number {number}."}]
    return {"id": f"made{number}_0", "conversations": said}


def _swe_agent(question: str, number: int) -> dict:
    def turn(role: str, text: str | None, system: str | None = None) -> dict:
        return {"cutoff_date": None, "mask": role == "ai", "role": role, "system_prompt": system, "text": text}

    trajectory = [
        turn("system", None, "SETTING: a shell."), turn("user", f"ISSUE:\n{question}"),
        turn("ai", "Let's list the files.\n```\nls -a\n```"), turn("user", f"main{number}.py"),
        turn("ai", "Done.\n```\nsubmit\n```"),
    ]  # fmt: skip
    return {
        "instance_id": f"owner__repo-{number}", "model_name": "made-up", "target": True, "trajectory": trajectory,
        "exit_status": "submitted", "generated_patch": "", "eval_logs": "",
    }  # fmt: skip


_ROW: dict[str, Callable[[str, int], dict]] = {
    "deepswe_kimi": _deepswe_kimi, "kimi_2000x": _kimi_2000x, "glaive": _glaive, "opencode": _opencode,
    "evol_instruct": _evol_instruct, "mixture_of_thoughts": _mixture_of_thoughts, "openthoughts": _openthoughts,
    "ultrachat": _ultrachat, "sharegpt": _sharegpt, "swe_agent": _swe_agent,
}  # fmt: skip
