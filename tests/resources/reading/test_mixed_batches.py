"""Batch files of several providers side by side in one folder, with the same custom ids: each pairs with its own kind."""

import json

import pytest

from tests.resources.records.test_openai_batch import read, request, response

OPENAI = [request("a", "openai a"), request("b", "openai b")], [response("b", "o-b"), response("a", "o-a")]
ANTHROPIC = (
    [{"custom_id": name, "params": {"model": "c", "max_tokens": 5, "messages": [{"role": "user", "content": f"claude {name}"}]}} for name in "ab"],
    [
        {
            "custom_id": name,
            "result": {
                "type": "succeeded",
                "message": {
                    "id": f"msg_{name}", "type": "message", "role": "assistant", "model": "c", "stop_reason": "end_turn",
                    "content": [{"type": "text", "text": f"c-{name}"}], "usage": {"input_tokens": 1, "output_tokens": 1},
                },
            },
        }
        for name in "ba"
    ],
)  # fmt: skip
GEMINI = (
    [{"key": name, "request": {"contents": [{"parts": [{"text": f"gemini {name}"}]}]}} for name in "ab"],
    [{"key": name, "response": {"candidates": [{"content": {"parts": [{"text": f"g-{name}"}]}, "finishReason": "STOP"}], "responseId": f"g{name}"}} for name in "ba"],
)  # fmt: skip
VLLM = [
    "INFO 06-01 08:00:00 [request_logger.py:30] Received request chatcmpl-a: prompt: '<|im_start|>user\\nvllm a<|im_end|>\\n"
    "<|im_start|>assistant\\n', params: SamplingParams(n=1, temperature=0.7, max_tokens=50), prompt_token_ids: None, "
    "prompt_embeds shape: None, lora_request: None.",
    "INFO 06-01 08:00:01 [request_logger.py:60] Generated response chatcmpl-a: output: 'v-a', output_token_ids: None, "
    "finish_reason: stop",
]
ANSWERED = {
    ("openai a", "o-a"), ("openai b", "o-b"), ("claude a", "c-a"), ("claude b", "c-b"), ("gemini a", "g-a"),
    ("gemini b", "g-b"),
}  # fmt: skip


def put(folder, name, lines):
    path = folder / "logs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))


def answered(found):
    return {
        (json.loads(row["messages"])[0]["content"], json.loads(row["completion"])["content"]) for row in found["interactions"]
    }


@pytest.mark.parametrize("one_file", [False, True])
def test_each_response_finds_the_request_of_its_own_format(tmp_path, one_file):
    if one_file:
        for side in (0, 1):
            put(tmp_path, f"{('input', 'output')[side]}.jsonl",
                [line for each in (OPENAI, ANTHROPIC, GEMINI) for line in each[side]])  # fmt: skip
    else:
        for name, (requests, responses) in {"o": OPENAI, "c": ANTHROPIC, "g": GEMINI}.items():
            put(tmp_path, f"{name}_input.jsonl", requests)
            put(tmp_path, f"{name}_output.jsonl", responses)
    found, report = read(tmp_path)
    assert answered(found) == ANSWERED and not found["quarantine"]
    assert (report.total.read, report.total.rows) == (6, 6)
    assert {row["source_format"] for row in found["interactions"]} == {"openai_pairs", "anthropic", "gemini"}
    again, report = read(tmp_path)
    assert report.total.read == 0 and answered(again) == ANSWERED


def test_a_later_file_of_one_format_leaves_the_pairs_of_the_others(tmp_path):
    put(tmp_path, "o_input.jsonl", OPENAI[0])
    put(tmp_path, "c_input.jsonl", ANTHROPIC[0])
    put(tmp_path, "c_output.jsonl", ANTHROPIC[1])
    put(tmp_path, "vllm.log", VLLM)
    found, _ = read(tmp_path)
    assert answered(found) == {("claude a", "c-a"), ("claude b", "c-b"), ("vllm a", "v-a")}
    assert [row["error_code"] for row in found["quarantine"]] == ["unpaired", "unpaired"]
    put(tmp_path, "o_output.jsonl", OPENAI[1])
    found, _ = read(tmp_path)
    assert answered(found) == {*(pair for pair in ANSWERED if not pair[0].startswith("gemini")), ("vllm a", "v-a")}
    assert not found["quarantine"]
