"""What a model said becomes the message that a server would return; what is no message is counted by its reason."""

import json

import pytest

from model_ops.tasks.call_forms import UNREADABLE_CALL, UnusableAnswer, message_of

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
SPECIALS = ["<|im_end|>", "<|im_start|>"]


@pytest.mark.parametrize(
    ("text", "prompt", "message"),
    [
        (" 7\n", "<|im_start|>assistant\n", {"content": "7"}),
        ("<think>\n3 + 4</think>\n\n7", "<|im_start|>assistant\n", {"content": "7", "reasoning_content": "3 + 4"}),
        ("3 + 4\n</think>\n\n7", "<|im_start|>assistant\n<think>\n", {"content": "7", "reasoning_content": "3 + 4"}),
        ("[THINK]hm[/THINK]7", "[/INST]", {"content": "7", "reasoning_content": "hm"}),
        ("if x < y: </think>", "<|im_start|>assistant\n<think>\n\n</think>\n\n", {"content": "if x < y: </think>"}),
    ],
)
def test_reasoning_and_content(text, prompt, message):
    assert message_of(text, prompt, None, SPECIALS) == {"role": "assistant", **message}


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "Let me see."),
        ('{"name": "add", "parameters": {"a": 1}}', ""),
        ('[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]', ""),
        ("[add(a=1)]", ""),
    ],
)
def test_calls_of_offered_tools(text, content):
    found = message_of(text, "", TOOLS, [*SPECIALS, "[TOOL_CALLS]"])
    [call] = found["tool_calls"]
    assert found["content"] == content and call["function"]["name"] == "add"
    assert json.loads(call["function"]["arguments"]) == {"a": 1}


def test_json_is_a_call_only_where_the_tool_was_offered():
    said = '{"name": "Ada", "arguments": {}}'
    for tools in (None, TOOLS):
        assert message_of(said, "", tools, SPECIALS) == {"role": "assistant", "content": said}


@pytest.mark.parametrize("value", ["{1, 2}", "b'x'", "1j", "...", "{(1, 2): 3}", "0x" + "F" * 4_000])
def test_a_call_with_what_json_does_not_know_cannot_be_read(value):
    said = f"[add(a={value})]"
    with pytest.raises(UnusableAnswer) as raised:
        message_of(said, "", TOOLS, SPECIALS)
    assert str(raised.value) == UNREADABLE_CALL and raised.value.message == {"role": "assistant", "content": said}


@pytest.mark.parametrize(
    ("text", "prompt", "reason"),
    [
        ("  ", "", "empty"),
        ("<think>on and on", "", "no answer after its reasoning"),
        ("on and on", "a\n<think>\n", "no answer after"),
        ("a<|im_start|>b", "", "a special token"),
        ("<tool_call>{add}</tool_call>", "", "cannot be read"),
        ('<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>', "", "a tool call"),
        ('<tool_call>{"name": "add", "arguments": "' + "[" * 9_999 + '"}</tool_call>', "", "a tool call"),
        ("<think>x</think> ", "", "empty"),
    ],
)
def test_what_is_no_message(text, prompt, reason):
    with pytest.raises(UnusableAnswer, match=reason):
        message_of(text, prompt, TOOLS, SPECIALS)
