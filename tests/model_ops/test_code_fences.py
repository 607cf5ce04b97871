"""Answers in code fences whose strings and docstrings hold fences, marks of calls, and other text that ends a naive reader."""

import json
import time

import pytest

from model_ops.tasks import FunctionCallItem, JsonItem, UnusableAnswer, message_of, score_json
from model_ops.tasks.call_forms import calls_in
from model_ops.tasks.code_fences import code_blocks
from model_ops.tasks.kinds import score_call
from model_ops.tasks.unit_tests import UnitTestsItem, run_unit_tests

SHARED = {"suite": "s", "item_id": "1", "messages": []}
F = "`" * 3
SCHEMA = {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"], "additionalProperties": False}
NOTE = json.dumps({"note": f"Run:\n{F}sh\nmake\n{F}\nor {F}json {{}} {F}"})


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (NOTE, 1),
        (f"\ufeff{NOTE}\n", 1),
        (f"{F}json\n{NOTE}\n{F}", 1),
        (f"{F}\n{NOTE}\n{F}", 1),
        (f"Here it is:\n\n{F}JSON5\r\n{NOTE}\r\n{F}\r\nDone.", 1),
        (f"`{F}json\n{NOTE}\n`{F}", 1),
        (f"~~~json\n{NOTE}\n~~~", 1),
        (f"{F}json {NOTE} {F}", 1),
        (f'{F}json title="x.json"\n{NOTE}\n{F}', 1),
        (f"{F}json {{.numberLines}}\n{NOTE}\n{F}", 1),
        (f"{F}json{NOTE}{F}", 1),
        (f"- item\n  {F}json\n  {NOTE}\n  {F}", 1),
        (f"{F}sh\nmake\n{F}\n{F}json\n{NOTE}\n{F}", 1),
        (f"{F}json\n{json.dumps(json.loads(NOTE), indent=2)}\n{F}", 1),
        (f'{F}json\n{{"note": 1}}\n{F}', 0),
        (f"{F}json\n{NOTE}", 0),
        (f"{F}json\n{NOTE} and more\n{F}", 0),
        (f"Here it is: {NOTE}", 0),
        (f'{F}json\n{NOTE}\n{F}\n{F}json\n{{"note": 3}}\n{F}', 0),
    ],
)
def test_json_ends_where_its_value_does(text, right):
    assert score_json(JsonItem(**SHARED, json_schema=SCHEMA), text) == right


ARGUMENTS = {
    "path": "a.md",
    "text": f"# T\n{F}sh\nmake\n{F}\nends with </tool_call>, <tool_call>{{}}</tool_call>, [TOOL_CALLS][{{}}] in it\n",
}
CALL = {"name": "write_file", "arguments": ARGUMENTS}
OPENAI = {"type": "function", "function": {"name": "write_file", "arguments": json.dumps(ARGUMENTS)}}
TOOLS = [{"type": "function", "function": {"name": "write_file", "parameters": {"properties": {"text": {"type": "string"}}}}}]
BARE = {
    "bare JSON": json.dumps(CALL),
    "a list": json.dumps([CALL], indent=1),
    "a message of OpenAI": json.dumps({"role": "assistant", "content": None, "tool_calls": [OPENAI]}),
    "Llama's parameters": json.dumps({"name": "write_file", "parameters": ARGUMENTS}),
    "Python": f"write_file(path='a.md', text={ARGUMENTS['text']!r})",
    "Hermes": f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>",
    "Hermes without its end": f"<tool_call>{json.dumps(CALL)}",
    "Mistral": f"[TOOL_CALLS]{json.dumps([CALL])}",
    "Mistral by name": f"[TOOL_CALLS]write_file[ARGS]{json.dumps(ARGUMENTS)}",
    "Llama's mark": f"<|python_tag|>{json.dumps({'name': 'write_file', 'parameters': ARGUMENTS})}",
    "LFM2 in JSON": f"<|tool_call_start|>[{json.dumps(CALL)}]<|tool_call_end|>",
    "Qwen3-Coder": f"<tool_call>\n<function=write_file>\n<parameter=path>\na.md\n</parameter>\n<parameter=text>\n{ARGUMENTS['text']}\n"
    "</parameter>\n</function>\n</tool_call>",
    "Gemma": f'<|tool_call>call:write_file{{path:<|"|>a.md<|"|>,text:<|"|>{ARGUMENTS["text"]}<tool_call|><|"|>}}<tool_call|>',
}
FENCED = {
    "fenced JSON": f"{F}json\n{json.dumps(CALL)}\n{F}",
    "fenced Python": f"So:\n{F}python\n{BARE['Python']}\n{F}",
    "fenced Python over lines": f'{F}tool_code\nwrite_file(path="a.md", text="""{ARGUMENTS["text"]}""")\n{F}',
}


@pytest.mark.parametrize("form", BARE | FENCED)
def test_a_call_is_read_whatever_its_strings_hold(form):
    text = (BARE | FENCED)[form]
    wanted = {**ARGUMENTS, "text": ARGUMENTS["text"] + "<tool_call|>"} if form == "Gemma" else ARGUMENTS
    assert calls_in(text, TOOLS) == [("write_file", wanted)]
    accepted = [{"write_file": {key: [value] for key, value in wanted.items()}}]
    assert score_call(FunctionCallItem(**SHARED, tools=TOOLS, accepted=accepted), text) == 1
    assert score_call(FunctionCallItem(**SHARED, tools=TOOLS, accepted=[{"write_file": {"path": ["b.md"]}}]), text) == 0


@pytest.mark.parametrize("form", BARE)
def test_a_call_with_fences_in_its_strings_is_not_text(form):
    message = message_of(BARE[form], "", TOOLS, [])
    assert message["content"] == "" and len(message["tool_calls"]) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"{F}json\n{json.dumps(CALL)}\n{F}",
        f"{F}\nwrite_file(path='a')\n{F}",
        "Models of Mistral write [TOOL_CALLS] first.",
        json.dumps({"answer": "<tool_call>{}</tool_call>"}),
    ],
)
def test_an_example_of_a_call_stays_text(text):
    assert message_of(text, "", TOOLS, []) == {"role": "assistant", "content": text}


def test_several_calls_after_one_mark():
    calls = f"[TOOL_CALLS]a[ARGS]{{}}[TOOL_CALLS]b[CALL_ID]x1[ARGS]{json.dumps({'t': '[TOOL_CALLS]c[ARGS]{}'})}"
    assert [call.name for call in calls_in(calls)] == ["a", "b"]
    assert [call.name for call in calls_in('<|python_tag|>{"name": "a", "parameters": {}}; {"name": "b"}')] == ["a", "b"]
    with pytest.raises(UnusableAnswer):
        message_of("[TOOL_CALLS]a[ARGS]{", "", TOOLS, [])


DOCSTRING = f'''def f(x):
    """Adds one.

    {F}python
    f(1)
    {F}

{F}
f(2)
{F}
    """
    # {F}
    return x + 1
'''


@pytest.mark.parametrize(
    "answer",
    [
        DOCSTRING,
        f"{F}python\n{DOCSTRING}{F}",
        f"Sure:\n\n{F}Python\n{DOCSTRING}\n{F}\n\nUse it:\n{F}python\nprint(f(1))\n{F}",
        f"{F}`python\n{DOCSTRING}{F}`",
        f"~~~py\n{DOCSTRING}~~~",
        f"{F}sh\npip install x\n{F}\nThen\n{F}python\n{DOCSTRING}{F}",
        f"1. Write {F}python\n{DOCSTRING}{F}",
        f"It is in {F} fences.\n{F}python\n{DOCSTRING}{F}",
        f"{F}python\n{DOCSTRING}",
        f"{F}python\r\ndef f(x):\r\n    return x + 1\r\n{F}\r\n",
        f"- a list\n\n  {F}python\n{DOCSTRING}  {F}",
    ],
)
def test_a_program_is_not_cut_at_a_fence_in_its_docstring(answer):
    item = UnitTestsItem(**SHARED, code="def f(x):\n", test="def check(f):\n    assert f(1) == 2", entry_point="f")
    assert run_unit_tests(item, answer, 20, 512).passed


@pytest.mark.parametrize(
    "part",
    [f"{F}python\n", F, f"{F}\n", f"{F}[", f'{F}["', f'["{F}["a", ', "<tool_call>{", '<tool_call>"', "[TOOL_CALLS]a[ARGS]"],
)
def test_a_long_answer_takes_little_time(part):
    text = part * (100_000 // len(part))
    began_s = time.process_time()
    code_blocks(text)
    calls_in(text, TOOLS)
    score_json(JsonItem(**SHARED, json_schema=True), text)
    assert time.process_time() - began_s < 3
