"""The prompt of an example line is whole: every key that holds a part of it is read, or the line goes to quarantine."""

import json

import pytest
from test_example_formats import fixture, jsonl, said
from test_formats import read, read_each

from resources.records.example_prompts import prompt_of
from resources.records.field_mapping import FieldMapping
from resources.records.formats import FORMATS, detect
from resources.records.mapped_records import mapped_format
from resources.records.providers.streams import with_joined_events

PAIR = {"chosen": "yes it is", "rejected": "no it is not"}
SFT = {"instruction": "Be brief.", "output": "yes"}
DONE = {"completion": "yes"}
S, U, A = ("system", "Be kind."), ("user", "Why is it so?"), ("assistant", "Because.")
ASKED = {"role": "user", "content": "Why is it so?"}


def chat(*turns):
    return [{"role": role, "content": said} for role, said in turns]


WHOLE = [
    ({"system": S[1], "input": U[1], **PAIR}, [S, U]),  # distilabel
    ({"system_prompt": S[1], "question": U[1], **PAIR}, [S, U]),
    ({"system": S[1], "prompt": U[1], **PAIR}, [S, U]),
    ({"system_message": S[1], "prompt": [ASKED], **PAIR}, [S, U]),
    ({"instruction": U[1], "input": "", "history": [["Hi", "Hello"]], **PAIR}, [("user", "Hi"), ("assistant", "Hello"), U]),
    (
        {"prompt": U[1], "history": json.dumps(chat(("user", "Hi"), ("assistant", "Hello"))), **PAIR},
        [("user", "Hi"), ("assistant", "Hello"), U],
    ),
    ({"prompt": U[1], "history": [{"user": "Hi", "bot": "Hello"}], **PAIR}, [("user", "Hi"), ("assistant", "Hello"), U]),
    (
        {
            "system": S[1],
            "conversations": [{"from": "human", "value": U[1]}],
            "chosen": {"from": "gpt", "value": "yes it is"},
            "rejected": {"from": "gpt", "value": "no it is not"},
        },
        [S, U],
    ),
    ({"context": "The sky is blue.", "question": U[1], **PAIR}, [("user", f"The sky is blue.\n\n{U[1]}")]),
    ({"contexts": ["It rains.", "It pours."], "prompt": U[1], **PAIR}, [("user", f"It rains.\n\nIt pours.\n\n{U[1]}")]),
    ({"instruction": "Sum up.", "context": "It rains.", **PAIR}, [("user", "Sum up.\n\nIt rains.")]),
    ({"document": "doc-12", "question": U[1], **PAIR}, [U]),  # an id
    ({"context": "It rains.", "prompt": "It rains. Why?", **PAIR}, [("user", "It rains. Why?")]),
    ({"instruction": U[1], "prompt": f"### Instruction:\n{U[1]}\n### Response:", **PAIR}, [U]),
    # UltraFeedback binarized
    (
        {
            "prompt": U[1],
            "messages": chat(U, ("assistant", "yes it is")),
            "chosen": chat(U, ("assistant", "yes it is")),
            "rejected": chat(U, ("assistant", "no it is not")),
        },
        [U],
    ),
    (
        {"system": S[1], "chosen": chat(U, ("assistant", "yes it is")), "rejected": chat(U, ("assistant", "no it is not"))},
        [S, U],
    ),
    ({"system": S[1], "messages": chat(U, ("assistant", "yes it is")), "rejected_response": "no it is not"}, [S, U]),
    ({"system": S[1], "prompt": chat(S, U), **PAIR}, [S, U]),
    ({"prompt": U[1], "images": [], **PAIR}, [U]),
    (
        {"system": S[1], "instruction": U[1], "history": [["Hi", "Hello"]], "output": "yes"},
        [S, ("user", "Hi"), ("assistant", "Hello"), U],
    ),
    ({"system_prompt": S[1], **SFT, "input": U[1]}, [S, ("user", f"Be brief.\n\n{U[1]}")]),
    (
        {"prompt": U[1], "system_prompt": S[1], "history": [["Hi", "Hello"]], **DONE},
        [S, ("user", "Hi"), ("assistant", "Hello"), U],
    ),
    ({"id": "niv.1", "system_prompt": S[1], "question": U[1], "response": "yes"}, [S, U]),  # OpenOrca
    (
        {"system": S[1], "query": U[1], "response": "yes", "history": [["Hi", "Hello"]]},  # ms-swift
        [S, ("user", "Hi"), ("assistant", "Hello"), U],
    ),
    ({"question": U[1], "choices": ["red", "deep blue"], "answer": "yes"}, [("user", f"{U[1]}\nA. red\nB. deep blue")]),
    (
        {"prompt": U[1], "options": {"label": ["1", "2"], "text": ["red", "blue"]}, **DONE},
        [("user", f"{U[1]}\n1. red\n2. blue")],
    ),
    ({"question": U[1], "options": {"A": "red", "B": "blue"}, **PAIR}, [("user", f"{U[1]}\nA. red\nB. blue")]),
    (
        {"instruction": "Name one.", "input": U[1], "choices": ["A) red", "B) blue"], "output": "yes"},
        [("user", f"Name one.\n\n{U[1]}\nA) red\nB) blue")],
    ),
    (
        {"question": "Red or blue?\nA. Red\nB. blue", "choices": ["Red", "blue"], "answer": "yes"},
        [("user", "Red or blue?\nA. Red\nB. blue")],
    ),
    ({"prompt": U[1], "options": {"temperature": 0.2, "stop": "The End"}, **DONE}, [U]),
    ({"question": U[1], "context": "It rains.", "answer": "yes"}, [("user", f"It rains.\n\n{U[1]}")]),
    ({"system": S[1], "messages": chat(U, A)}, [S, U]),  # Bedrock's Claude
    ({"prompt": U[1], "messages": chat(U, A)}, [U]),
    (
        {"system_prompt": S[1], "conversations": [{"from": "human", "value": U[1]}, {"from": "gpt", "value": "Because."}]},
        [S, U],
    ),
]


def test_the_prompt_has_every_part(tmp_path):
    each, _ = read_each(tmp_path, [{"id": f"row-{number}", **line} for number, (line, _) in enumerate(WHOLE)])
    for (rows, bad, _), (line, asked) in zip(each, WHOLE, strict=True):
        assert not bad and len(rows) == 1 + ("chosen" in line or "rejected_response" in line), line
        for row in rows:
            assert [(each["role"], each["content"]) for each in json.loads(row["messages"])] == asked
            assert json.loads(row["completion"])["content"] in ("yes", "yes it is", "no it is not", "Because.")


WITHOUT_PLACE = [
    ({"prompt": "Say it.", "question": U[1], **PAIR}, "question"),
    ({"prompt": [ASKED], "context": "The sky is blue.", **PAIR}, "context"),
    ({"prompt": U[1], "input": "It rains.", "context": "The sky is blue.", **DONE}, "context"),
    ({"prompt": "Something else.", "messages": chat(U, A)}, "prompt"),
    ({"messages": chat(U, A), "context": "The sky is blue."}, "context"),
    ({"prompt": [ASKED], "choices": ["red", "green"], **DONE}, "choices"),
    ({"prompt": "What is on the picture?", "images": ["a.png"], **PAIR}, "images"),
    ({"messages": chat(U, A), "image": {"bytes": "aGk=", "path": "a.png"}}, "image"),
    ({"conversations": [{"from": "human", "value": U[1]}, {"from": "gpt", "value": "x"}], "images": ["a.png"]}, "images"),
    ({"prompt": "def f(", "suffix": "    return x", **DONE}, "suffix"),
    ({"instruction": U[1], "history": "We spoke before.", **PAIR}, "history"),
    ({"system": "Be rude.", "prompt": chat(S, U), **PAIR}, "system"),
    ({**SFT, "question": U[1]}, "question"),
]


def test_a_part_without_a_place_goes_to_quarantine_by_name(tmp_path):
    each, _ = read_each(tmp_path, [line for line, _ in WITHOUT_PLACE])
    for (rows, bad, _), (line, key) in zip(each, WITHOUT_PLACE, strict=True):
        assert not rows and bad[0]["error_code"] == "wrong_type" and key in bad[0]["message"], line


def test_unread_keys_of_a_preference_line_are_named(tmp_path):
    _, _, _, report = read(tmp_path, [{"prompt": "Why is it so?", **PAIR, "grader": "strict", "rating": [9, 4]}] * 2)
    assert [key.path for key in report.unread_keys["gateway"]] == ["grader", "rating"]


SCORES = [
    ({"score_chosen": 8.0, "score_rejected": 4}, {"yes it is": 1, "no it is not": -1}, {}),
    ({"score_chosen": 8.0, "score_rejected": 8}, {"yes it is": None}, {"equal_scores": 1}),
    ({"chosen_rating": "5", "rejected_rating": "5.0"}, {"yes it is": None}, {"equal_scores": 1}),
    ({"chosen_score": 9, "rejected_score": 9, "status": "tie"}, {"yes it is": None}, {"equal_scores": 1}),
    ({"status": "tie"}, {"yes it is": None}, {"equal_scores": 1}),
    ({"score_chosen": 4, "score_rejected": 10}, {}, {"contradictory_scores": 2}),
]  # fmt: skip


def test_answers_that_the_scores_do_not_tell_apart_are_no_pair(tmp_path):
    lines = [{"prompt": f"Why is it so, {number}?", **PAIR, **scores} for number, (scores, *_) in enumerate(SCORES)]
    each, report = read_each(tmp_path, lines)
    for (rows, bad, feedback), (_, learnt, _) in zip(each, SCORES, strict=True):
        values = {said["interaction_id"]: said["value"] for said in feedback}
        assert {json.loads(row["completion"])["content"]: values.get(row["interaction_id"]) for row in rows} == learnt
        assert not bad
    assert report.total.skipped == sum(sum(rules.values()) for *_, rules in SCORES)


@pytest.mark.parametrize("more", [
    {"response": {"id": "r1", "choices": []}},
    {"response": "yes", "request": {"messages": []}},
    {"response": "", "messages": []},
])  # fmt: skip
def test_a_logged_call_beside_a_question_is_no_example(more):
    form = detect([{"question": "Why is it so?", **more}])
    assert form is None or form.name != "prompt_completion"


@pytest.mark.parametrize("text", ["[]", "null", "{", '"x"', '{"messages": 4}', '{"history": 3, "prompt": "q"}', "[" * 5000])
def test_prompt_of_never_raises(text):
    assert {"messages", "problem"} <= json.loads(prompt_of(text)).keys()


@pytest.mark.parametrize("name", ["ollama", "completions", "langsmith"])
def test_every_record_of_a_fixture_is_its_formats_and_no_others(name):
    for record in jsonl(f"{name}.jsonl"):
        assert [form.name for form in FORMATS.values() if form.recognises(with_joined_events(record))] == [name]


def test_ollama_chat_generate_and_streams(tmp_path):
    rows, bad, _, _ = fixture(tmp_path, "ollama.jsonl")
    assert not bad and [row["completion"]["content"] for row in rows] == [
        "Because of Rayleigh scattering.",
        "",
        "Rayleigh.",
        "Hello.",
    ]
    assert [row["finish_reason"] for row in rows] == ["stop", "tool_calls", "length", "stop"]
    first, called, generated, _ = rows
    assert first["params"] == {"stream": False, "temperature": 0.2, "max_tokens": 64} and first["model"] == "llama3.2"
    assert (first["prompt_tokens"], first["completion_tokens"]) == (26, 282) and 4883 < first["latency_ms"] < 4884
    assert first["ts"].hour == 12 and 343 < first["ttft_ms"] < 344
    assert called["reasoning"] == "I look." and called["tools"][0]["function"]["name"] == "get_current_weather"
    assert json.loads(called["completion"]["tool_calls"][0]["function"]["arguments"]) == {"location": "Paris"}
    assert said(generated["messages"]) == [("system", "Be brief."), ("user", "Why is the sky blue?")]


def test_completions_and_their_templates(tmp_path):
    rows, bad, _, _ = fixture(tmp_path, "completions.jsonl")
    assert not bad and [(row["choice_index"], row["completion"]["content"], row["finish_reason"]) for row in rows] == [
        (0, "This is.", "length"),
        (1, "A test.", "stop"),
        (0, "Hello.", "stop"),
    ]
    assert said(rows[0]["messages"]) == [("user", "Say this is a test")] and rows[0]["params"] == {"max_tokens": 7, "n": 2}
    assert said(rows[2]["messages"]) == [("system", "Be brief."), ("user", "Hi.")] and rows[0]["prompt_tokens"] == 5


def test_runs_of_langsmith(tmp_path):
    rows, bad, _, report = fixture(tmp_path, "langsmith.jsonl")
    assert not bad and report.total.skipped == 1 and [row["request_id"] for row in rows] == ["a1b2", "a1b3", "a1b4"]
    called, answered, wrapped = rows
    assert said(called["messages"]) == [("system", "Be brief."), ("user", "Weather in Paris?")]
    assert called["completion"]["tool_calls"][0]["function"] == {
        "name": "get_current_weather",
        "arguments": '{"location":"Paris"}',
    }
    assert (called["session_id"], called["model"], called["finish_reason"]) == ("thread-7", "gpt-4.1-mini", "tool_calls")
    assert [message["role"] for message in answered["messages"]] == ["user", "assistant", "tool"]
    assert answered["messages"][1]["tool_calls"][0]["id"] == answered["messages"][2]["tool_call_id"] == "call_9"
    assert wrapped["completion"]["content"] == "Hello." and wrapped["completion_tokens"] == 3


PARTIAL = [
    ({"request": {"prompt": "a", "context": [1, 2]}, "response": {"response": "b", "done": True}}, "the whole prompt"),
    ({"request": {"prompt": ["a", "b"]}, "response": {"object": "text_completion", "choices": [{"text": "c"}]}}, "the whole prompt"),
    ({"request": {"prompt": "def f(", "suffix": "return"}, "response": {"choices": [{"text": "c"}]}}, "the whole prompt"),
    ({"id": "1", "run_type": "llm", "trace_id": "1", "inputs": {"messages": ["a"]}, "outputs": {"text": "b"}}, "langsmith"),
]  # fmt: skip


def test_a_request_that_does_not_hold_the_prompt_is_not_learnt(tmp_path):
    each, _ = read_each(tmp_path, [record for record, _ in PARTIAL])
    for (rows, [bad], _), (_, words) in zip(each, PARTIAL, strict=True):
        assert not rows and words in bad["message"]


def test_an_ollama_stream_that_was_cut_is_a_failed_request(tmp_path):
    chunks = [
        {"model": "m", "created_at": "2026-06-01T12:00:00Z", "message": {"role": "assistant", "content": "Hel"}, "done": False}
    ]
    [row], bad, _, _ = read(tmp_path, [{"request": {"messages": [{"role": "user", "content": "a"}]}, "response": chunks}])
    assert not bad and row["status"] == "failure" and "stream_cut" in row["error"]


def test_an_ollama_answer_that_is_not_done_is_not_whole(tmp_path):
    def told(**more):
        return {
            "request": {"model": "m", "messages": [{"role": "user", "content": str(more)}]},
            "response": {
                "model": "m",
                "created_at": "2026-06-01T12:00:00Z",
                "message": {"role": "assistant", "content": "Op"},
                **more,
            },
        }

    rows, bad, _, _ = read(
        tmp_path, [told(done=False), told(done=False, done_reason=None), told(done=True), told(done=True, done_reason="length")]
    )
    assert not bad and [row["finish_reason"] for row in rows] == ["not_done", "not_done", "stop", "length"]
    record = told(done=False)
    _, found = mapped_format(
        {"m": record["request"]["messages"], "a": record["response"]}, FieldMapping(request="m", response="a")
    )
    assert found["response"]["choices"][0]["finish_reason"] == "not_done"
