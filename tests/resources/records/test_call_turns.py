"""Calls and results of ShareGPT conversations."""

import json

import pytest
from test_formats import read


def _call(city, **more):
    return {"name": "weather", "arguments": {"city": city}, **more}


def _turn(speaker, value):
    return {"from": speaker, "value": value if isinstance(value, str) else json.dumps(value)}


ASKED, SAID = _turn("human", "Oslo and Rome?"), _turn("gpt", "9 and 24.")
RESULTS = [_turn("observation", "9 C"), _turn("observation", "24 C")]


@pytest.mark.parametrize(
    "turns",
    [
        [_turn("function_call", _call("Oslo")), _turn("function_call", _call("Rome")), *RESULTS],
        [_turn("function_call", [_call("Oslo"), _call("Rome")]), *RESULTS],
        [_turn("tool_call", f"{json.dumps(_call('Oslo'))}\n{json.dumps(_call('Rome'))}"), *RESULTS],
        [
            _turn("function_call", [{"type": "function", "function": _call("Oslo")}]),
            _turn("function_call", _call("Rome")),
            *RESULTS,
        ],
        [{"from": "function_call", "value": [_call("Oslo"), _call("Rome")]}, _turn("tool_response", ["9 C", "24 C"])],
    ],
    ids=["in a row", "a list", "lines", "nested", "one value of results"],
)
def test_calls_in_a_row_are_one_turn_and_results_answer_them_in_order(tmp_path, turns):
    rows, bad, _, _ = read(tmp_path, [{"conversations": [ASKED, *turns, SAID]}])
    assert not bad and len(rows) == 2
    called, last = json.loads(rows[0]["completion"]), json.loads(rows[1]["messages"])
    assert [json.loads(call["function"]["arguments"])["city"] for call in called["tool_calls"]] == ["Oslo", "Rome"]
    assert rows[0]["finish_reason"] == "tool_calls" and json.loads(rows[1]["completion"])["content"] == "9 and 24."
    assert [(message["tool_call_id"], message["content"]) for message in last[2:]] == [
        (call["id"], said) for call, said in zip(called["tool_calls"], ["9 C", "24 C"], strict=True)
    ]


def test_a_second_round_of_calls_has_ids_of_its_own_and_a_text_before_a_call_is_in_its_turn(tmp_path):
    turns = [ASKED, _turn("gpt", "I look."), _turn("function_call", _call("Oslo")), RESULTS[0],
        _turn("function_call", _call("Rome")), RESULTS[1], SAID]  # fmt: skip
    rows, bad, _, _ = read(tmp_path, [{"conversations": turns}])
    told = json.loads(rows[2]["messages"])
    assert not bad and [message["role"] for message in told] == ["user", "assistant", "tool", "assistant", "tool"]
    assert told[1]["content"] == "I look." and told[1]["tool_calls"][0]["id"] == told[2]["tool_call_id"] == "call_1"
    assert told[3]["tool_calls"][0]["id"] == told[4]["tool_call_id"] == "call_2"


@pytest.mark.parametrize("turns", [
    [_turn("function_call", "look for Oslo"), ASKED, SAID],
    [ASKED, _turn("function_call", [_call("Oslo"), 5]), SAID],
    [ASKED, _turn("function_call", _call("Oslo")), _turn("function_call", "{"), SAID],
])  # fmt: skip
def test_a_call_without_a_name_is_no_call(tmp_path, turns):
    rows, [bad], _, _ = read(tmp_path, [{"conversations": turns}])
    assert not rows and "function_call that is no JSON with a name" in bad["message"]
