"""Edits: recognised under many names, read as corrections, tied to the answer that they correct."""

import json

import pytest
from test_formats import read

from resources.inspecting.proposed_fields import proposed_fields
from resources.records.edits import answer_id, is_edit, sides_of
from resources.records.field_mapping import FieldMapping
from resources.records.formats import detect

BERN, ROME = "The capital is Bern.", "The capital is Rome."


@pytest.mark.parametrize(
    "record",
    [
        {"request_id": "r1", "original": BERN, "corrected": ROME},
        {"id": "r1", "before": BERN, "after": ROME},
        {"trace_id": "t1", "model_answer": BERN, "edited": ROME},
        {"trace_id": "t1", "ai_response": BERN, "final": ROME},
        {"requestId": "r1", "response_id": "r1", "botAnswer": BERN, "humanAnswer": ROME},
        {"response_id": "r1", "draft": BERN, "sent": ROME},
        {"session_id": "s1", "suggestion": BERN, "final_text": ROME},
        {"request_id": "r1", "generated": BERN, "corrected_answer": ROME, "editor": "anna"},
        {"request_id": "r1", "original_response": BERN, "edited_response": ROME},
        {"request_id": "r1", "model_output": BERN, "expected_output": ROME},
        {"request_id": "r1", "answer": BERN, "ideal_answer": ROME},
        {"request_id": "r1", "response_before": BERN, "response_after": ROME},
        {"original": BERN, "revised": ROME},
        {"run_id": "r1", "key": "correctness", "score": 0, "correction": {"output": ROME}},
        {"run_id": "r1", "key": "correctness", "correction": {"messages": [{"role": "assistant", "content": ROME}]}},
        {"request_id": "r1", "prompt": "Capital of Italy?", "original": BERN, "corrected": ROME},
        {"request_id": "r1", "original": {"role": "assistant", "content": BERN}, "corrected": json.dumps({"content": ROME})},
    ],
)
def test_an_edit_is_known_by_its_names(record):
    assert detect([record]).name == "edits"
    assert sides_of(record)[1] == ROME and sides_of(record)[0] in (BERN, "")


@pytest.mark.parametrize("record", [
    {"request_id": "r1", "edited": True, "original": BERN},
    {"id": "1", "question": "q", "answer": BERN, "expected_output": ROME},  # an item of an evaluation
    {"id": "1", "question": "q", "model_answer": BERN, "expected_output": ROME},
    {"request": {"messages": []}, "response": {"choices": []}, "corrected": ROME},
    {"messages": [{"role": "user", "content": "q"}], "corrected": ROME},
    {"id": "4", "before": {"plan": "a", "seats": 1}, "after": {"plan": "b", "seats": 2}},  # an audit log
    {"id": "4", "model": "m", "final": ROME},
    {"corrected": ROME},
    {"response_id": "r1", "value": 1, "comment": ROME},
    {"response_id": "r1", "value": 1, "comment": ROME, "correction": None},
    {"request_id": "r1", "original": BERN, "edited": False},
])  # fmt: skip
def test_what_is_no_edit(record):
    assert not is_edit(record)


def test_an_edit_with_a_prompt_and_no_request_is_a_preference_line(tmp_path):
    rows, bad, feedback, _ = read(tmp_path, [{"question": "Capital of Italy?", "model_answer": BERN, "corrected_answer": ROME}])
    value = {row["interaction_id"]: row["value"] for row in feedback}
    assert not bad
    assert {json.loads(row["completion"])["content"]: value[row["interaction_id"]] for row in rows} == {BERN: -1, ROME: 1}


def call(number, said, **more):
    asked = [{"role": "user", "content": f"question {number}"}]
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
    return {
        "request": {"model": "m", "messages": asked},
        "response": {"id": f"chatcmpl-{number}x7f", "choices": [choice]},
        **more,
    }


def test_edits_are_tied_by_id_or_by_what_was_said(tmp_path):
    logs = [call(1, BERN), call(2, "It  is 4."), call(3, "Yes."), call(4, "Yes."), call(5, "five", trace_id="t5"),
            call(6, "six", trace_id="t5"), call(7, "seven", trace_id="t7"), call(8, "eight"), call(9, "nine")]  # fmt: skip
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/a.jsonl").write_text("\n".join(map(json.dumps, logs)))
    edits = [
        {"response_id": "chatcmpl-1x7f", "original": BERN, "corrected": ROME},
        {"original": "It is 4.", "corrected": "It is 5."},
        {"original": "Yes.", "corrected": "No."},
        {"trace_id": "t5", "original": "six", "corrected": "It is six."},
        {"id": "e9", "before": "five", "after": "five "},
        {"request_id": "nobody", "original": "a", "corrected": "b"},
        {"request_id": "own-id", "original": "eight", "corrected": "It is eight."},
        {"trace_id": "t7", "original": "seven", "corrected": "It is seven."},
        {"response_id": "chatcmpl-9x7f", "original": "eight", "corrected": "It is nine."},
        {
            "run_id": "chatcmpl-3x7f",
            "key": "correctness",
            "score": 0,
            "comment": "wrong",
            "correction": {"output": "Not at all."},
        },
    ]
    rows, bad, feedback, report = read(tmp_path, edits, name="b.jsonl")
    assert not bad and report.total.feedback == len(edits)
    said = {row["interaction_id"]: json.loads(row["completion"])["content"] for row in rows}
    tied = {
        (said[row["interaction_id"]], row["comment"], row["label"], row["tie"]) for row in feedback if row["interaction_id"]
    }
    assert tied == {
        (BERN, ROME, "corrected", "request"),
        ("It  is 4.", "It is 5.", "corrected", "answer"),
        ("six", "It is six.", "corrected", "answer"),
        ("five", "five ", "unchanged", "answer"),
        ("eight", "It is eight.", "corrected", "answer"),
        ("seven", "It is seven.", "corrected", "trace"),
        ("nine", "It is nine.", "corrected", "request"),  # an id that ties goes before what was said
        ("Yes.", "wrong", None, "request"),
        ("Yes.", "Not at all.", "corrected", "request"),
    }
    assert {row["tie"] for row in feedback if row["comment"] in ("No.", "b")} == {"several", "unknown"}
    assert [row["value"] for row in feedback if row["name"] == "correctness"] == [0]
    assert len(feedback) == len(edits) + 1  # one row each, and a rating
    assert {row["name"] for row in feedback} == {"correction", "correctness"} and answer_id(" a \n b") == answer_id("a b")


@pytest.mark.parametrize("nothing", ["", " ", None])
def test_an_empty_correction_is_no_edit(tmp_path, nothing):
    edits = [
        {"request_id": "r1", "original": BERN, "corrected": ROME},
        {"request_id": "r2", "original": BERN, "corrected": nothing},
        {"request_id": "r3", "name": "correctness", "score": 1, "correction": nothing},
    ]
    _, [bad], feedback, report = read(tmp_path, edits)
    assert (bad["source_row"], bad["error_code"], bad["message"]) == (2, "missing_field", "the edit has no corrected text")
    assert {(row["request_id"], row["name"], row["value"]) for row in feedback} == {
        ("r1", "correction", None),
        ("r3", "correctness", 1),
    }
    assert (report.total.feedback, report.total.quarantined) == (2, 1)


def test_edits_of_a_table_are_read(tmp_path):
    _, bad, feedback, _ = read(tmp_path, b"request_id,original,corrected\nr1,It is Bern.,It is Rome.\n", name="edits.csv")
    assert not bad and [(row["request_id"], row["comment"]) for row in feedback] == [("r1", "It is Rome.")]


def test_a_correction_of_langfuse_is_an_edit(tmp_path):
    score = {"id": "s1", "observation_id": "chatcmpl-1x7f", "name": "output", "data_type": "CORRECTION", "value": 0}
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/a.jsonl").write_text(json.dumps(call(1, BERN)))
    _, bad, [row], _ = read(tmp_path, [{**score, "string_value": None, "long_string_value": ROME}], name="b.jsonl")
    assert not bad and (row["name"], row["value"], row["label"], row["comment"]) == ("correction", None, "corrected", ROME)
    assert row["tie"] == "request"


@pytest.mark.parametrize(("record", "reason"), [
    ({"call": "chatcmpl-1x7f", "was": BERN, "is": ROME}, ""),
    ({"call": "x", "was": BERN}, "has nothing at is (fields: correction)"),
])  # fmt: skip
def test_fields_name_an_edit(tmp_path, record, reason):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/a.jsonl").write_text(json.dumps(call(1, BERN)))
    fields = FieldMapping(id="call", original="was", correction="is")
    _, bad, feedback, _ = read(tmp_path, [record], name="b.jsonl", fields=fields)
    assert [(row["comment"], row["tie"]) for row in feedback] == ([] if reason else [(ROME, "request")])
    assert len(bad) == bool(reason) and all(reason in row["message"] for row in bad)


@pytest.mark.parametrize("fields", [{"original": "a"}, {"original": "a", "correction": "b", "prompt": "c", "answer": "d"}])
def test_an_edit_is_named_whole_and_without_a_request(fields):
    with pytest.raises(ValueError, match="without a request"):
        FieldMapping(**fields)


def test_texts_that_share_their_words_are_proposed_as_an_edit():
    said = [
        "the museum opens at nine on each day but monday",
        "tea is served in the garden from four to six",
        "the last boat goes at ten",
    ]
    edits = [{"bot": text, "we": f"{text}, as we all know", "no": f"n{number}"} for number, text in enumerate(said)]
    assert proposed_fields(edits).items() >= {"original": "bot", "correction": "we"}.items()
    chats = [{"one": text, "two": f"{text[::-1]} {number}"} for number, text in enumerate(said)]
    assert proposed_fields(chats) == {"prompt": "one", "answer": "two"}


def test_an_answer_has_one_id_whatever_its_spaces_are():
    import sys

    import duckdb

    from resources.lake import run

    spaces = [chr(code) for code in range(sys.maxunicode) if chr(code).isspace()]
    texts = [f"{space}The capital{space}{space}is\u200bBern.{space}" for space in spaces]
    connection = duckdb.connect()
    connection.execute(
        "create table interactions as select 'w' as workload, unnest(range(?)) as interaction_id, null as request_id, null as alias_id, "
        "null as trace_id, null as session_id, to_json({content: unnest(?)}) as completion",
        [len(texts), texts],
    )
    run(connection, "reading/ties/conversations_by_text")
    named = {name for (name,) in connection.execute("select alias_id from conversations where alias_id is not null").fetchall()}
    assert named == {answer_id(text) for text in texts} == {answer_id("The capital is\u200bBern.")} and len(texts) == 29
