"""Formats of examples: fine-tuning, preference, conversation, text and token rows, each from a fixture of its own."""

import copy
import json
from functools import cache
from pathlib import Path

import pytest
from test_formats import read, read_each

from resources.records.formats import FORMATS, detect
from resources.records.providers.streams import with_joined_events

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/formats"


@cache
def read_once(name, home):
    """A fixture file, read into a lake of its own in the folder `home` (Interactions with their JSON parsed)."""
    rows, bad, feedback, report = read(home / f"fixture-{name}", (FIXTURES / name).read_bytes(), name=name)
    return [with_parsed(row) for row in rows], bad, feedback, report


def with_parsed(row):
    return row | {name: json.loads(row[name]) if row[name] else None for name in ("messages", "tools", "params", "completion")}


def fixture(tmp_path, name):
    """Interactions (with their JSON parsed), quarantine, feedback and report of a fixture file, which all tests read once."""
    return copy.deepcopy(read_once(name, tmp_path.parent))


def jsonl(name):
    return [json.loads(line) for line in (FIXTURES / name).read_text().splitlines()]


def said(messages):
    return [(message["role"], message["content"]) for message in messages]


def test_stored_completions_with_their_messages_in_any_of_three_places(tmp_path):
    rows, (bad,), _, report = fixture(tmp_path, "stored_completions.jsonl")
    assert [row["messages"][-1]["content"] for row in rows] == ["question 1", "question 2", "question 3"]
    assert [row["completion"]["content"] for row in rows] == ["answer 1", "answer 2", "answer 3"]
    row = rows[1]
    assert row["tools"][0]["function"]["name"] == "weather" and row["params"] == {"temperature": 0.5, "top_p": 1.0, "seed": 7}
    assert (row["request_id"], row["session_id"], row["client"]) == ("chatcmpl-2", "s1", "web")
    assert (row["prompt_tokens"], row["completion_tokens"], row["cached_tokens"]) == (9, 3, 4)
    assert str(row["dt"]) == "2026-06-01" and row["source_format"] == "stored_completions"
    assert bad["source_row"] == 4 and "/chat/completions/{id}/messages" in bad["message"] and report.total.read == 4


def test_a_page_of_stored_completions_is_one_record_for_each(tmp_path):
    rows, (bad,), _, report = fixture(tmp_path, "stored_completions_page.json")
    assert {row["request_id"] for row in rows} == {"chatcmpl-5", "chatcmpl-6"} and report.total.read == 3
    assert bad["error_code"] == "missing_field" and "messages" in bad["message"]


PAGES = [
    ({"object": "list", "data": []}, "lists no completions"),
    ({"object": "list", "data": [{"id": "chatcmpl-1-0", "role": "user", "content": "q"}]}, "into its completion"),
    ({"object": "chat.completion", "id": "x", "choices": [], "messages": [{"role": "user", "content": "q"}]}, "choices"),
]  # fmt: skip


def test_pages_without_completions_say_so(tmp_path):
    for (rows, (bad,), _), (_, words) in zip(read_each(tmp_path, [page for page, _ in PAGES])[0], PAGES, strict=True):
        assert not rows and words in bad["message"]


def test_sft_lines_with_the_older_functions(tmp_path):
    rows, bad, _, _ = fixture(tmp_path, "messages.jsonl")
    assert not bad and [row["status"] for row in rows] == ["success"] * 2 and rows[0]["params"] is None
    assert rows[1]["tools"][0] == {"type": "function", "function": rows[0]["tools"][0]["function"]}
    assert rows[1]["completion"]["function_call"]["name"] == "weather"


def test_rft_lines_are_prompts_with_what_their_grader_needs(tmp_path):
    rows, bad, _, _ = fixture(tmp_path, "messages_rft.jsonl")
    assert not bad and [row["status"] for row in rows] == ["prompt"] * 3 and not any(row["completion"] for row in rows)
    assert rows[0]["params"] == {"item": {"reference_answer": "4", "difficulty": "easy"}} and rows[2]["params"] is None
    assert [len(row["messages"]) for row in rows] == [1, 3, 1] and rows[1]["params"]["item"]["answer"] == {"number": 6}


def test_a_conversation_the_user_ended_still_teaches_its_answer(tmp_path):
    talk = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "bye"}]
    (row,), bad, _, _ = read(tmp_path, [{"id": "x", "messages": talk}])
    assert not bad and row["status"] == "success" and json.loads(row["completion"])["content"] == "2"


def test_every_dialect_of_preferences_gives_two_choices_and_what_was_preferred(tmp_path):
    rows, bad, feedback, report = fixture(tmp_path, "preferences.jsonl")
    assert not bad and len(rows) == 20 and report.total.read == 20 and report.total.attached_feedback == 20
    value = {row["interaction_id"]: row["value"] for row in feedback}
    assert {row["name"] for row in feedback} == {"preference"} and len(value) == 20
    better, worse = ("It is -3 °C.", "yes", "good", "3"), ("Not very.", "no", "bad", "4")
    prompts = {}
    for row in rows:
        preferred = row["choice_index"] == 0
        assert row["completion"]["content"] in (better if preferred else worse), row["source_row"]
        assert value[row["interaction_id"]] == (1 if preferred else -1)
        prompts.setdefault(row["source_row"], []).append(said(row["messages"]))
    assert all(first == second for first, second in prompts.values())
    asked = [prompts[number][0] for number in sorted(prompts)]
    assert asked[2:7] == [
        [("user", "swift?")],
        [("user", "strings?")],
        [("system", "Be kind."), ("user", "lists?")],
        [("user", "implicit?")],
        [("user", "whole conversations?")],
    ]
    assert asked[7] == [("user", "transcripts?"), ("assistant", "Yes."), ("user", "And?")]
    assert asked[8:] == [[("user", "llama-factory?")], [("user", "Sum.\n\n1 2")]]


def test_a_preference_with_one_side_missing_keeps_the_other(tmp_path):
    rows, bad, feedback, report = read(
        tmp_path, [{"prompt": "q", "chosen": "yes", "rejected": None}, {"chosen": "no prompt", "rejected": "at all"}]
    )
    assert [row["choice_index"] for row in rows] == [0] and [row["value"] for row in feedback] == [1]
    assert [row["message"] for row in bad] == [
        "the example has no rejected answer",
        *["the example has no prompt before its answers"] * 2,
    ]
    assert report.total.read == 4


def test_sharegpt_gives_an_interaction_for_each_answer(tmp_path):
    rows, bad, _, report = fixture(tmp_path, "sharegpt.jsonl")
    assert not bad and [row["source_row"] for row in rows] == [1, 1, 2, 2, 3, 3, 3, 4] and report.total.read == 8
    assert said(rows[1]["messages"]) == [("user", "Who are you?"), ("assistant", "A model."), ("user", "Since when?")]
    assert rows[0]["session_id"] == rows[1]["session_id"] and rows[0]["session_id"].startswith("identity_0:")
    assert rows[0]["request_id"] != rows[1]["request_id"]
    call, final = rows[2], rows[3]
    assert call["completion"]["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": '{"place": "Kyiv"}',
    } or json.loads(call["completion"]["tool_calls"][0]["function"]["arguments"]) == {"place": "Kyiv"}
    assert call["finish_reason"] == "tool_calls" and call["tools"][0]["function"]["name"] == "weather"
    assert [message["role"] for message in final["messages"]] == ["system", "user", "assistant", "tool"]
    assert final["messages"][3]["tool_call_id"] == call["completion"]["tool_calls"][0]["id"]
    assert [row["completion"]["content"] for row in rows[4:]] == ["b", "d", "f", "works"]


UNREADABLE_TURNS = [
    ([{"from": "king", "value": "q"}, {"from": "gpt", "value": "a"}], "speaker"),
    ([{"from": "human", "value": "q"}, {"from": "function_call", "value": "call f"}], "no JSON"),
    ([{"from": "gpt", "value": "a"}], "answer"),
    ([], "not a list"),
    ([{"from": "human", "value": "q"}, {"from": "gpt", "value": 5}], "content"),
]  # fmt: skip


def test_sharegpt_that_cannot_be_read_is_one_quarantine_row(tmp_path):
    each, _ = read_each(tmp_path, [{"conversations": turns} for turns, _ in UNREADABLE_TURNS])
    for (rows, (bad,), _), (_, words) in zip(each, UNREADABLE_TURNS, strict=True):
        assert not rows and words in bad["message"]


def test_alpaca_and_its_relatives(tmp_path):
    rows, bad, _, _ = fixture(tmp_path, "alpaca.jsonl")
    assert not bad and [row["completion"]["content"] for row in rows] == ["Red, green, blue.", "3", "A fruit.", "Then d."]
    assert [row["messages"][-1]["content"] for row in rows] == [
        "Name three colours.",
        "Add.\n\n1 and 2",
        "What is it?\n\nA plum.",
        "And then?",
    ]
    assert said(rows[3]["messages"]) == [
        ("system", "Tell."),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
        ("assistant", "d"),
        ("user", "And then?"),
    ]
    _, bad, _, _ = read(tmp_path, [{"instruction": "", "output": "x"}, {"instruction": "x", "output": None}])
    assert ["instruction" in bad[0]["message"], "output" in bad[1]["message"]] == [True, True]


def test_prompts_with_completions_as_texts_or_lists_and_without(tmp_path):
    rows, bad, _, _ = fixture(tmp_path, "prompt_completion.jsonl")
    assert not bad and [row["messages"][-1]["content"] for row in rows] == ["The sky is", "sky?", "colour?", "1+1?", "prove it"]
    assert [row["completion"] and row["completion"]["content"] for row in rows] == [" blue.", "Blue.", "red", "2", None]
    assert rows[4]["status"] == "prompt" and rows[4]["params"] == {"item": {"ground_truth": "QED"}}


def test_plain_text_rows(tmp_path):
    rows, bad, _, _ = fixture(tmp_path, "text.jsonl")
    assert not bad and [row["status"] for row in rows] == ["text"] * 2 and rows[0]["request_id"] == "doc-1"
    assert [row["messages"] for row in rows] == [[], []]
    assert rows[1]["completion"] == {"role": "assistant", "content": "def f():\n    return 1\n"}


def test_token_rows_keep_ids_and_what_is_learnt(tmp_path):
    rows, bad, _, _ = fixture(tmp_path, "tokens.jsonl")
    assert not bad and [row["status"] for row in rows] == ["tokens"] * 4
    assert [row["prompt_token_ids"] for row in rows] == [[5, 6], [1], [], [4]]
    assert [row["completion_token_ids"] for row in rows] == [[7, 8], [2, 3, 4, 5, 6], [9, 8, 7], [5, 6]]
    assert [row["params"] for row in rows] == [None, {"masked": [[1, 3]]}, None, None]
    assert [row["messages"] for row in rows] == [[]] * 4 and not any(row["completion"] for row in rows)
    assert len({row["content_sha256"] for row in rows}) == 4


def test_rows_of_the_same_ids_and_other_labels_are_two(tmp_path):
    rows, bad, _, report = read(
        tmp_path,
        [
            {"token_ids": [1, 2, 3]},
            {"token_ids": [1, 2, 3], "labels": [-100, 2, 3]},
            {"token_ids": [1, 2, 3]},
            {"token_ids": [1, 2, 3, 4], "labels": [1, -100, 3, -100]},
            {"token_ids": [1, 2, 3, 4], "labels": [1, 2, 3, -100]},
        ],
    )
    assert not bad and len(rows) == 4 and report.total.repeated == 1
    assert [row["params"] and json.loads(row["params"])["masked"] for row in rows] == [None, None, [[1, 2], [3, 4]], [[3, 4]]]


def test_token_rows_that_do_not_hold_together_are_quarantined(tmp_path):
    cases = [
        ({"token_ids": [1, 2, 3], "labels": [1, 2]}, "3 token ids, but 2 labels"),
        ({"token_ids": [1, 2], "loss_mask": [1]}, "a mask of 1"),
        ({"token_ids": [1, 2], "attention_mask": [1]}, "of 1"),
        ({"token_ids": []}, "not a list"),
        ({"token_ids": [1, -2]}, "whole number"),
        ({"token_ids": [1, 2.5]}, "whole number"),
        ({"token_ids": [1, "x"]}, "whole number"),
        ({"token_ids": [1, 2**40]}, "whole number"),
        ({"token_ids": [[1, 2]]}, "whole number"),
        ({"token_ids": [1, 2], "labels": [2, -100]}, "not shifted"),
        ({"token_ids": [1, 2], "labels": [-100, -100]}, "nothing to learn"),
        ({"token_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}, "between"),
    ]
    rows, bad, _, _ = read(tmp_path, [row for row, _ in cases])
    assert not rows and len(bad) == len(cases)
    for each, (row, words) in zip(bad, cases, strict=True):
        assert words in each["message"], row


def test_prompt_and_answer_as_token_ids(tmp_path):
    rows, bad, _, _ = read(
        tmp_path,
        [
            {"workload": "math", "prompt": [1, 2], "answer": [3, 4]},
            {"prompt_token_ids": [5], "completion_token_ids": [6, 7]},
            {"prompt": [1, 2], "answer": [3, "x"]},
        ],
    )
    assert [(row["prompt_token_ids"], row["completion_token_ids"]) for row in rows] == [([1, 2], [3, 4]), ([5], [6, 7])]
    assert rows[0]["workload_name"] == "math" and [row["error_code"] for row in bad] == ["wrong_type"]


def test_every_answer_of_a_message_tree_is_a_row_and_ranks_are_preferences(tmp_path):
    rows, (bad,), feedback, report = fixture(tmp_path, "oasst.jsonl")
    by_id = {row["request_id"]: row for row in rows}
    assert set(by_id) == {"m2", "m3", "m4", "m6"} and {row["session_id"] for row in rows} == {"t1"}
    assert said(by_id["m6"]["messages"]) == [("user", "how do magnets work?"), ("assistant", "They pull."), ("user", "why?")]
    assert by_id["m3"]["completion"] == {"role": "assistant", "content": "By aligned electron spins."}
    told = {row["interaction_id"]: row["value"] for row in feedback}
    assert told == {by_id[name]["interaction_id"]: value for name, value in (("m3", 1), ("m2", 0), ("m4", -1))}
    assert bad["source_row"] == 2 and "no message of the assistant" in bad["message"] and report.total.read == 5


def test_every_fixture_is_recognised_as_its_own_format_only():
    for path in FIXTURES.iterdir():
        text = path.read_text()
        records = jsonl(path.name) if path.suffix == ".jsonl" else [json.loads(text)]
        records = list(map(with_joined_events, records))  # as the reader does before it recognises a record
        own = next(name for name in sorted(FORMATS, key=len, reverse=True) if path.name.startswith(name))
        assert detect(records[:8]).name == own, path.name
        for record in records if own != "chunks" else records[1:6]:
            assert detect([record]).name == own, (path.name, sorted(record))


@pytest.mark.parametrize("name", ["messages", "preferences", "sharegpt", "alpaca", "tokens", "stored_completions"])
def test_a_wrong_format_named_in_the_recipe_is_one_sentence(tmp_path, name):
    rows, (bad,), _, _ = read(tmp_path, (FIXTURES / "text.jsonl").read_bytes(), format=name)
    assert not rows
    assert bad["message"].startswith(f"none of the first 2 records is of the format {name}; the first one's keys: ")


def test_labels_of_unpaired_preferences_are_feedback_on_their_answer(tmp_path):
    asked, said = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    rows, bad, feedback, report = read(
        tmp_path,
        [
            {"prompt": "q1", "completion": "a", "label": True},
            {"prompt": [asked], "completion": [said], "label": False},
            {"prompt": "q3", "completion": "a", "label": "spam"},
            {"prompt": "q4", "completion": "a"},
            {"prompt": "", "completion": [asked], "label": True},
            {"messages": [asked, said, asked, {**said, "content": "b"}], "label": False},
            {"messages": [asked], "label": True},
        ],
    )
    found = {row["interaction_id"]: row["source_row"] for row in rows}
    assert [(found[row["interaction_id"]], row["value"], row["name"]) for row in feedback] == [
        (1, 1, "preference"),
        (2, -1, "preference"),
        (6, -1, "preference"),
    ]
    last = next(row for row in rows if row["interaction_id"] == feedback[2]["interaction_id"])
    assert json.loads(last["completion"])["content"] == "b" and [row["source_row"] for row in bad] == [5]
    assert report.total.attached_feedback == 3 and report.total.read == 8


@pytest.mark.parametrize("key", ["label", "Label", "kto_label", "kto_tag", "is_desirable", "desirable"])
def test_a_label_of_any_key_is_feedback_but_not_the_class_that_a_short_answer_names(tmp_path, key):
    classes = [("toxic", "toxic"), ("No", "no"), ("It is false.", False), ("Irrelevant", "irrelevant"), ("1", 1)]
    verdicts = [
        ("It is toxic of them to say so, and no reader should see it.", "toxic"),
        ("yes", False),
        ("Nothing", "no"),
        ("11", 1),
    ]
    lines = [{"prompt": f"q{n}", "completion": said, key: label} for n, (said, label) in enumerate(classes + verdicts)]
    rows, bad, feedback, report = read(tmp_path, lines)
    assert not bad and len(rows) == 9 and report.unread_keys == {}
    assert [(row["source_row"], row["value"]) for row in sorted(feedback, key=lambda row: row["source_row"])] == [
        (6, -1),
        (7, -1),
        (8, -1),
        (9, 1),
    ]


def test_labels_of_any_spelling_are_read_in_each_form_of_a_data_set_and_only_those(tmp_path):
    def forms(asked):
        talk = [{"from": "human", "value": asked}, {"from": "gpt", "value": "a"}]
        yield {"prompt": f"{asked} p", "completion": "a"}
        yield {"instruction": f"{asked} i", "input": "", "output": "a"}
        yield {"conversations": talk, "system": "be brief"}
        yield {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": "a"}]}

    labels = ["False", "0", 0, 0.0, "undesirable", "maybe", 2, "positive", None]
    lines = [{**form, "label": label, "n": place} for place, label in enumerate(labels) for form in forms(f"q {place}")]
    lines += [{"instruction": f"{tag}", "output": "b", "kto_tag": tag} for tag in (True, "rejected")]
    lines.append({"conversations": [{"from": who, "value": who} for who in ("human", "gpt", "human")], "label": False})
    rows, bad, feedback, report = read(tmp_path, lines)
    assert not bad and len(rows) == len(lines)
    read_as = [(row["name"], row["value"]) for row in sorted(feedback, key=lambda row: row["source_row"])]
    wrong, none, two = [("preference", -1)] * 4, [("label of gateway", 0)] * 4, [("label of gateway", 2)] * 4
    assert read_as == [*wrong, *none * 3, *wrong, *two, ("preference", 1), ("preference", -1)]
    unread = {key.path: key.records for key in report.unread_keys["gateway"]}
    assert unread == {"n": 9 * 4, "label": 2 * 4}  # what is no label, and only that


SAID = {"role": "assistant", "content": "Bern."}
CHOICES = [{"index": 0, "message": SAID, "finish_reason": "stop"}, {"index": 1, "message": {**SAID, "content": "It is Bern."}}]


BESIDE = [
    ({"model": "m", "temperature": 1, "choices": CHOICES}, ["Bern.", "It is Bern."]),
    ({"choices": CHOICES[:1], "session_id": "s1", "usage": {"completion_tokens": 3}}, ["Bern."]),
    ({"response": {"id": "r", "choices": CHOICES}}, ["Bern.", "It is Bern."]),
    ({"llm_response": {"choices": CHOICES[:1]}, "model": "m"}, ["Bern."]),
]


def test_messages_beside_a_response_are_asked_and_answered(tmp_path):
    lines = [{"messages": [{"role": "user", "content": f"The capital, {n}?"}], **more} for n, (more, _) in enumerate(BESIDE)]
    for (rows, bad, _), line, (_, answers) in zip(read_each(tmp_path, lines)[0], lines, BESIDE, strict=True):
        assert [json.loads(row["completion"])["content"] for row in rows] == answers and not bad
        assert all(json.loads(row["messages"]) == line["messages"] and row["status"] == "success" for row in rows)


def test_choices_of_a_question_or_of_an_answer_that_is_among_the_messages_are_no_response(tmp_path):
    asked = {"role": "user", "content": "The capital?"}
    records = [{"messages": [asked], "choices": ["Bern", "Rome"]}, {"messages": [asked, SAID], "choices": CHOICES[:1]}]
    rows, _, _, _ = read(tmp_path, records)
    assert sorted((row["status"], row["completion"] and json.loads(row["completion"])["content"]) for row in rows) == [
        ("prompt", None),
        ("success", "Bern."),
    ]
