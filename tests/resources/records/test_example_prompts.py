"""The prompt of an example line is whole: every key that holds a part of it is read, or the line goes to quarantine."""

import json

import pytest
from test_formats import read

from resources.records.example_prompts import prompt_of
from resources.records.formats import detect

PAIR = {"chosen": "yes it is", "rejected": "no it is not"}
SFT = {"instruction": "Be brief.", "output": "yes"}
DONE = {"completion": "yes"}
S, U, A = ("system", "Be kind."), ("user", "Why is it so?"), ("assistant", "Because.")
ASKED = {"role": "user", "content": "Why is it so?"}


def chat(*turns):
    return [{"role": role, "content": said} for role, said in turns]


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ({"system": S[1], "input": U[1], **PAIR}, [S, U]),  # distilabel
        ({"system_prompt": S[1], "question": U[1], **PAIR}, [S, U]),
        ({"system": S[1], "prompt": U[1], **PAIR}, [S, U]),
        ({"system_message": S[1], "prompt": [ASKED], **PAIR}, [S, U]),
        ({"instruction": U[1], "input": "", "history": [["Hi", "Hello"]], **PAIR}, [("user", "Hi"), ("assistant", "Hello"), U]),
        ({"prompt": U[1], "history": json.dumps(chat(("user", "Hi"), ("assistant", "Hello"))), **PAIR},
         [("user", "Hi"), ("assistant", "Hello"), U]),
        ({"prompt": U[1], "history": [{"user": "Hi", "bot": "Hello"}], **PAIR}, [("user", "Hi"), ("assistant", "Hello"), U]),
        ({"system": S[1], "conversations": [{"from": "human", "value": U[1]}], "chosen": {"from": "gpt", "value": "yes it is"},
          "rejected": {"from": "gpt", "value": "no it is not"}}, [S, U]),
        ({"context": "The sky is blue.", "question": U[1], **PAIR}, [("user", f"The sky is blue.\n\n{U[1]}")]),
        ({"contexts": ["It rains.", "It pours."], "prompt": U[1], **PAIR}, [("user", f"It rains.\n\nIt pours.\n\n{U[1]}")]),
        ({"instruction": "Sum up.", "context": "It rains.", **PAIR}, [("user", "Sum up.\n\nIt rains.")]),
        ({"document": "doc-12", "question": U[1], **PAIR}, [U]),  # an id
        ({"context": "It rains.", "prompt": "It rains. Why?", **PAIR}, [("user", "It rains. Why?")]),
        ({"instruction": U[1], "prompt": f"### Instruction:\n{U[1]}\n### Response:", **PAIR}, [U]),
        # UltraFeedback binarized
        ({"prompt": U[1], "messages": chat(U, ("assistant", "yes it is")), "chosen": chat(U, ("assistant", "yes it is")),
          "rejected": chat(U, ("assistant", "no it is not"))}, [U]),
        ({"system": S[1], "chosen": chat(U, ("assistant", "yes it is")), "rejected": chat(U, ("assistant", "no it is not"))}, [S, U]),
        ({"system": S[1], "messages": chat(U, ("assistant", "yes it is")), "rejected_response": "no it is not"}, [S, U]),
        ({"system": S[1], "prompt": chat(S, U), **PAIR}, [S, U]),
        ({"prompt": U[1], "images": [], **PAIR}, [U]),
        ({"system": S[1], "instruction": U[1], "history": [["Hi", "Hello"]], "output": "yes"},
         [S, ("user", "Hi"), ("assistant", "Hello"), U]),
        ({"system_prompt": S[1], **SFT, "input": U[1]}, [S, ("user", f"Be brief.\n\n{U[1]}")]),
        ({"prompt": U[1], "system_prompt": S[1], "history": [["Hi", "Hello"]], **DONE},
         [S, ("user", "Hi"), ("assistant", "Hello"), U]),
        ({"id": "niv.1", "system_prompt": S[1], "question": U[1], "response": "yes"}, [S, U]),  # OpenOrca
        ({"system": S[1], "query": U[1], "response": "yes", "history": [["Hi", "Hello"]]},  # ms-swift
         [S, ("user", "Hi"), ("assistant", "Hello"), U]),
        ({"question": U[1], "choices": ["red", "deep blue"], "answer": "yes"}, [("user", f"{U[1]}\nA. red\nB. deep blue")]),
        ({"prompt": U[1], "options": {"label": ["1", "2"], "text": ["red", "blue"]}, **DONE}, [("user", f"{U[1]}\n1. red\n2. blue")]),
        ({"question": U[1], "options": {"A": "red", "B": "blue"}, **PAIR}, [("user", f"{U[1]}\nA. red\nB. blue")]),
        ({"instruction": "Name one.", "input": U[1], "choices": ["A) red", "B) blue"], "output": "yes"},
         [("user", f"Name one.\n\n{U[1]}\nA) red\nB) blue")]),
        ({"question": "Red or blue?\nA. Red\nB. blue", "choices": ["Red", "blue"], "answer": "yes"},
         [("user", "Red or blue?\nA. Red\nB. blue")]),
        ({"prompt": U[1], "options": {"temperature": 0.2, "stop": "The End"}, **DONE}, [U]),
        ({"question": U[1], "context": "It rains.", "answer": "yes"}, [("user", f"It rains.\n\n{U[1]}")]),
        ({"system": S[1], "messages": chat(U, A)}, [S, U]),  # Bedrock's Claude
        ({"prompt": U[1], "messages": chat(U, A)}, [U]),
        ({"system_prompt": S[1], "conversations": [{"from": "human", "value": U[1]}, {"from": "gpt", "value": "Because."}]}, [S, U]),
    ],
)  # fmt: skip
def test_the_prompt_has_every_part(tmp_path, line, asked):
    rows, bad, _, _ = read(tmp_path, [line])
    assert not bad
    for row in rows:
        assert [(each["role"], each["content"]) for each in json.loads(row["messages"])] == asked
        assert json.loads(row["completion"])["content"] in ("yes", "yes it is", "no it is not", "Because.")
    assert len(rows) == 1 + ("chosen" in line or "rejected_response" in line)


@pytest.mark.parametrize(("line", "key"), [
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
])  # fmt: skip
def test_a_part_without_a_place_goes_to_quarantine_by_name(tmp_path, line, key):
    rows, bad, _, _ = read(tmp_path, [line])
    assert not rows and bad[0]["error_code"] == "wrong_type" and key in bad[0]["message"]


def test_unread_keys_of_a_preference_line_are_named(tmp_path):
    _, _, _, report = read(tmp_path, [{"prompt": "Why is it so?", **PAIR, "grader": "strict", "rating": [9, 4]}] * 2)
    assert [key.path for key in report.unread_keys["gateway"]] == ["grader", "rating"]


@pytest.mark.parametrize(("scores", "learnt", "rules"), [
    ({"score_chosen": 8.0, "score_rejected": 4}, {"yes it is": 1, "no it is not": -1}, {}),
    ({"score_chosen": 8.0, "score_rejected": 8}, {"yes it is": None}, {"equal_scores": 1}),
    ({"chosen_rating": "5", "rejected_rating": "5.0"}, {"yes it is": None}, {"equal_scores": 1}),
    ({"chosen_score": 9, "rejected_score": 9, "status": "tie"}, {"yes it is": None}, {"equal_scores": 1}),
    ({"status": "tie"}, {"yes it is": None}, {"equal_scores": 1}),
    ({"score_chosen": 4, "score_rejected": 10}, {}, {"contradictory_scores": 2}),
])  # fmt: skip
def test_answers_that_the_scores_do_not_tell_apart_are_no_pair(tmp_path, scores, learnt, rules):
    rows, bad, feedback, report = read(tmp_path, [{"prompt": "Why is it so?", **PAIR, **scores}])
    values = {each["interaction_id"]: each["value"] for each in feedback}
    assert not bad
    assert {json.loads(row["completion"])["content"]: values.get(row["interaction_id"]) for row in rows} == learnt
    assert report.total.skipped == sum(rules.values())


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
