"""One synthetic row of each of the case's ten sets: made up here, in exactly the columns that the owners publish."""

import json

GLAIVE_SYSTEM = """SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -
{
    "name": "send_email",
    "description": "Send an email",
    "parameters": {
        "type": "object",
        "properties": {
            "to": {
                "type": "string",
                "description": "Who gets it, e.g. {name}@example.com"
            },
            "text": {
                "type": "string"
            }
        },
        "required": [
            "to"
        ]
    }
}

{
    "name": "get_time",
    "description": "Get the time",
    "parameters": {
        "type": "object",
        "properties": {}
    }
}
"""
GLAIVE_CHAT = (
    "USER: Please write to Ann.\n\nSay hello.\n\n\n"
    'ASSISTANT: <functioncall> {"name": "send_email", "arguments": \'{"to": "ann@example.com", "text": "Don\'t panic"}'
    "'} <|endoftext|>\n\n\n"
    'FUNCTION RESPONSE: {"status": "sent"}\n\n\n'
    "ASSISTANT: It is sent. <|endoftext|>\n\n\n"
    "USER: And the time?\n\n\n"
    'ASSISTANT: Let me look. <functioncall> {"name": "get_time", "arguments": \'{}\'} <|endoftext|>\n\n\n'
    'FUNCTION RESPONSE: {"time": "noon"}\n\n\n'
    "ASSISTANT: Noon. <|endoftext|>\n\n\n"
)
TASK = "Fix the issue in the repository.\n<issue>\nIt breaks.\n</issue>"
CALL = "I look first.\n\n<function=bash>\n<parameter=command>ls -a</parameter>\n</function>"

ROWS = {
    # A1: SWE-Factory/DeepSWE-Agent-Kimi-K2-Trajectories-2.8K
    "deepswe_kimi": {
        "messages": json.dumps([
            {"role": "system", "content": "You are a programmer."},
            {"role": "user", "content": TASK},
            {"role": "assistant", "content": CALL},
            {"role": "user", "content": "Exit code: 0\nExecution output of [bash]:\n.\n..\nmain.py"},
            {"role": "assistant", "content": "Done.\n\n<function=finish>\n</function>"},
        ])
    },
    # A2: KimiK2.5-2000x, whose columns are not known: one of the shapes it may have
    "kimi_2000x": {"problem": "What is 2+2?", "thinking": "Two and two.", "solution": "It is 4."},
    # B1: glaiveai/glaive-function-calling-v2
    "glaive": {"system": GLAIVE_SYSTEM, "chat": GLAIVE_CHAT},
    # B2: nvidia/OpenCodeInstruct, every column a text
    "opencode": {
        "id": "7f2c0a", "input": "Write a function that adds.\n\n**Sample Input:**\n1 2",
        "output": "```python\ndef add(a, b):\n    return a + b\n```", "domain": "generic",
        "generation_algorithm": "self-instruct",
        "llm_judgement": '{"requirement_conformance": {"score": 5}}',
        "unit_tests": '["assert add(1, 2) == 3"]', "tests_execution_status": '["pass"]',
        "average_test_score": "0.9",
    },
    # B3: ise-uiuc/Magicoder-Evol-Instruct-110K
    "evol_instruct": {"instruction": "Please write a quicksort.", "response": "def quicksort(xs): ..."},
    # B4: open-r1/Mixture-of-Thoughts
    "mixture_of_thoughts": {
        "messages": [
            {"content": "Solve x + 1 = 2.", "role": "user"},
            {"content": "<think>\nSubtract one.\n</think>\nx = 1", "role": "assistant"},
        ],
        "num_tokens": 21, "source": "open-r1/OpenR1-Math-220k",
    },
    # B5: open-thoughts/OpenThoughts-114k
    "openthoughts": {
        "system": "Your role as an assistant involves thoroughly exploring questions.",
        "conversations": [
            {"from": "user", "value": "Return your final response within \\boxed{}. What is 3*4?"},
            {
                "from": "assistant",
                "value": "<|begin_of_thought|>\n\nThree fours.\n\n<|end_of_thought|>\n\n"
                "<|begin_of_solution|>\n\n\\boxed{12}\n\n<|end_of_solution|>",
            },
        ],
    },
    # B6: HuggingFaceH4/ultrachat_200k
    "ultrachat": {
        "prompt": "Who wrote Faust?", "prompt_id": "f0e37e9f7800261167ce91143f98f511f768847236f133f2d0aed60b444ebe57",
        "messages": [
            {"content": "Who wrote Faust?", "role": "user"},
            {"content": "Goethe.", "role": "assistant"},
            {"content": "When?", "role": "user"},
            {"content": "From 1772 on.", "role": "assistant"},
        ],
    },
    # B7: ShareGPT, Vicuna, unfiltered
    "sharegpt": {
        "id": "QWJhYvA_0",
        "conversations": [
            {"from": "human", "value": "Summarize <div>this</div> \\_please\\_"},
            {"from": "gpt", "value": "A summary."},
        ],
    },
    # B8: nebius/SWE-agent-trajectories
    "swe_agent": {
        "instance_id": "owner__repo-12", "model_name": "swe-agent-llama-70b", "target": True,
        "trajectory": [
            {"cutoff_date": "01.01.2023", "mask": False, "role": "system", "system_prompt": "SETTING: a shell.",
             "text": None},
            {"cutoff_date": None, "mask": False, "role": "user", "system_prompt": None, "text": "ISSUE:\nIt breaks."},
            {"cutoff_date": None, "mask": True, "role": "ai", "system_prompt": None,
             "text": "Let's list the files.\n```\nls -a\n```"},
            {"cutoff_date": None, "mask": False, "role": "user", "system_prompt": None, "text": "main.py"},
            {"cutoff_date": None, "mask": True, "role": "ai", "system_prompt": None, "text": "Done.\n```\nsubmit\n```"},
        ],
        "exit_status": "submitted", "generated_patch": "diff --git a/main.py b/main.py", "eval_logs": "1 passed",
    },
}  # fmt: skip
