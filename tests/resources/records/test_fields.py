"""A source's `fields`: records of no known format, read where the recipe says their parts are."""

import json

import pytest
from marked_formats import NAMES, VALUES, fields_of, write_marked
from pydantic import ValidationError
from test_formats import read

from resources.digests.user_hash import keyed_hash
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest, notes_on
from resources.records.field_mapping import FieldMapping
from resources.records.formats import FORMATS
from resources.records.json_paths import path_of, steps_of, value_at
from resources.records.mapped_records import mapped_format
from resources.sources.sources import SourceSettings

ANSWER = {"choices": [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "yes"}}],
    "model": "m-1", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}  # fmt: skip
ASKED = [{"role": "user", "content": "hé"}]


def said(row):
    return [(message["role"], message["content"]) for message in json.loads(row["messages"])], json.loads(row["completion"])[
        "content"
    ]


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        ({"p": {"req": {"model": "m", "messages": ASKED}, "res": ANSWER}}, {"request": "p.req", "response": "p.res"}),
        ({"p": json.dumps({"req": {"messages": ASKED}, "res": json.dumps(ANSWER)})}, {"request": "p.req", "response": "p.res"}),
        ({"m": json.dumps(ASKED), "a": "yes"}, {"messages": "m", "answer": "a"}),
        (
            {"m": [{"from": "human", "value": "hé"}], "a": {"role": "assistant", "content": "yes"}},
            {"request": "m", "response": "a"},
        ),
        ({"q": "hé", "a": "yes"}, {"prompt": "q", "answer": "a"}),
        ({"q": "hé", "a": "yes"}, {"request": "q", "response": "a"}),
        (
            {"q": {"prompt": "hé", "temperature": 1}, "a": [{"role": "assistant", "content": "yes"}]},
            {"request": "q", "response": "a"},
        ),
        ({"m": [{"speaker": "Customer", "text": "hé"}, {"speaker": "bot", "text": "yes"}]}, {"messages": "m"}),
        (
            {"m": ASKED, "a": {"model": "m", "message": {"role": "assistant", "content": "yes"}, "done": True}},
            {"request": "m", "response": "a"},
        ),
        (
            {"m": {"input": "hé"}, "a": {"output": [{"type": "message", "content": [{"type": "output_text", "text": "yes"}]}]}},
            {"request": "m", "response": "a"},
        ),
    ],
)
def test_request_and_answer_in_any_shape(record, fields):
    form, found = mapped_format(record, FieldMapping(**fields))
    if form.name == "fields:messages":
        assert [(turn["role"], turn["content"]) for turn in found["messages"]] == [("user", "hé"), ("assistant", "yes")]
        return
    assert form.name == "fields:openai_pairs"
    if "output" in found["response"]:  # the Responses API, which the format's SQL reads
        assert (found["request"], found["response"]) == (record["m"], record["a"])
        return
    assert [(turn["role"], turn["content"]) for turn in found["request"]["messages"]] == [("user", "hé")]
    assert found["response"]["choices"][0]["message"] == {"role": "assistant", "content": "yes"}


def test_everything_beside_them(tmp_path):
    record = {
        "uuid": 17,
        "at": "2026-06-01T10:00:00Z",
        "who": {"mail": "ann@example.org"},
        "chat": "s1",
        "engine": "m-9",
        "app": "desk",
        "sys": "Be brief.",
        "q": "hé",
        "a": "yes",
        "tools": '[{"type":"function","function":{"name":"look"}}]',
        "stars": "dislike",
    }
    fields = {
        "prompt": "q",
        "answer": "a",
        "system": "sys",
        "tools": "tools",
        "id": "uuid",
        "time": "at",
        "user": "who.mail",
        "session": "chat",
        "model": "engine",
        "workload": "app",
        "feedback": "stars",
    }
    (row,), _, (thumb,), report = read(tmp_path, [record], fields=fields)
    assert said(row) == ([("system", "Be brief."), ("user", "hé")], "yes")
    assert (row["request_id"], row["session_id"], row["model"], row["workload_name"]) == ("17", "s1", "m-9", "desk")
    assert str(row["ts"]) == "2026-06-01 10:00:00+00:00" and json.loads(row["tools"])[0]["function"]["name"] == "look"
    assert row["user_hash"] and "ann" not in str(row)
    assert (thumb["value"], thumb["given_id"], thumb["source_row"]) == (-1, row["interaction_id"], 1)
    assert report.total.attached_feedback == 1 and report.total.read == 1


def test_a_whole_conversation_has_a_row_for_each_answer_and_feedback_on_each(tmp_path):
    turns = [*ASKED, {"role": "assistant", "content": "yes"}, *ASKED, {"role": "assistant", "content": "no"}]
    rows, _, thumbs, report = read(
        tmp_path,
        [{"c": {"turns": turns}, "u": "ann", "ok": False}],
        fields={"messages": "c.turns", "user": "u", "feedback": "ok"},
    )
    assert [said(row)[1] for row in rows] == ["yes", "no"] and len({row["session_id"] for row in rows}) == 1
    assert {row["given_id"] for row in thumbs} == {row["interaction_id"] for row in rows}
    assert {row["value"] for row in thumbs} == {-1}
    assert all(row["user_hash"] for row in rows) and report.total.read == 2


def test_feedback_alone(tmp_path):
    _, (bad,), found, report = read(
        tmp_path, [{"msg": "r1", "vote": 1}, {"msg": "r2"}], fields={"id": "msg", "feedback": "vote"}
    )
    assert [(row["request_id"], row["value"]) for row in found] == [("r1", 1)] and report.total.read == 2
    assert bad["source_row"] == 2 and "nothing at vote (fields: feedback)" in bad["message"]


BESIDE = {"time": "2026-06-01T10:00:00Z", "thumb": "down", "conversation_id": "s1", "user": {"id": "U2"}}


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ({"req": {"model": "m", "messages": ASKED}}, {"resp": ANSWER}),
        ({"requestBody": json.dumps({"messages": ASKED})}, {"responseBody": json.dumps(ANSWER)}),
        ({"prompt": {"messages": ASKED}}, {"completion": ANSWER}),
        ({"input": ASKED}, {"output": {"role": "assistant", "content": "yes"}}),
        (
            {"req": {"model": "c", "max_tokens": 9, "messages": ASKED}},
            {"res": {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "yes"}]}},
        ),
        (
            {"llm_request": {"contents": [{"role": "user", "parts": [{"text": "hé"}]}]}},
            {"llm_response": {"candidates": [{"content": {"role": "model", "parts": [{"text": "yes"}]}}]}},
        ),
    ],
)
def test_request_and_response_under_other_names_are_a_chat_with_its_columns(tmp_path, asked, answered):
    given = {"request_id": "g1", "value": 1}
    (row,), bad, thumbs, report = read(tmp_path, [{**BESIDE, **asked, **answered, "actor": {"login": "U9"}}, given])
    assert (said(row), row["session_id"], str(row["ts"])[:10]) == (([("user", "hé")], "yes"), "s1", "2026-06-01")
    assert row["user_hash"] and [thumb["value"] for thumb in thumbs] == [-1, 1] and not bad
    assert [key.path for key in report.unread_keys["gateway"]] == ["actor.login"]
    (named,), *_ = read(tmp_path / "named", [{**BESIDE, **asked, **answered}], fields={"session": "user.id"})
    assert (said(named), named["session_id"]) == (said(row), "U2")


@pytest.mark.parametrize(("record", "is_feedback"), [
    ({"session_id": "s", "thumb": 1}, True),
    ({"session_id": "s", "thumb": 1, "input": "hé", "output": "yes"}, False),
    ({"response_id": "r", "thumb": 1, "input": "hé", "output": "yes"}, True),  # about a call that is logged elsewhere
    ({"session_id": "s", "thumb": 1, "payload": {"req": {"messages": ASKED}, "resp": ANSWER}}, False),
    ({"session_id": "s", "score": 1, "input": {"ticket": 7}, "output": {"grade": 3}}, True),
])  # fmt: skip
def test_a_chat_with_a_thumb_is_no_feedback(record, is_feedback):
    assert FORMATS["feedback"].recognises(record) is is_feedback
    assert FORMATS["feedback"].accepts(record)


def test_records_without_what_fields_name_are_of_a_known_format_or_say_what_they_lack(tmp_path):
    known = {"request": {"messages": ASKED}, "response": {"id": "r", **ANSWER}}
    lines = [{"q": "hé", "a": "yes"}, known, {"q": "hé"}, {"q": ["x"], "a": "b"}, {"q": "hé", "a": {"x": 1}}, {"level": "info"}]
    rows, bad, _, report = read(tmp_path, lines, fields={"request": "q", "response": "a"})
    assert [row["source_row"] for row in rows] == [1, 2] and report.total.read == 6
    assert [row["message"].split("; ")[0].split(" and ", 1)[1] for row in bad] == [
        "has nothing at a (fields: response)",
        "has neither an OpenAI request, a list of messages nor a text at q (fields: request)",
        "has neither an OpenAI response, a message nor a text at a (fields: response)",
        "has nothing at q (fields: request)",
    ]
    assert json.loads(bad[0]["raw"]) == {"q": "hé"}


def test_a_file_where_nothing_fits_is_one_row(tmp_path):
    _, (bad,), _, report = read(tmp_path, [{"q": "hé"}] * 30, fields={"request": "q", "response": "a"})
    assert (bad["source_row"], report.total.read) == (0, 1) and "none of the first 30" in bad["message"]
    assert "nothing at a (fields: response)" in bad["message"]


def test_a_streamed_answer_is_joined_and_broken_lines_keep_their_reason(tmp_path):
    chunks = [
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": end}]}
        for word, end in (("ye", None), ("s", "stop"))
    ]
    lines = b"\n".join(
        [
            json.dumps({"q": "hé", "a": chunks}).encode(),
            b'{"q": ',
            json.dumps({"q": "ho", "a": "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)}).encode(),
            b"[1, 2]",
        ]
    )
    rows, bad, _, _ = read(tmp_path, lines, fields={"request": "q", "response": "a"})
    assert [said(row)[1] for row in rows] == ["yes", "yes"]
    assert [(row["source_row"], row["error_code"]) for row in bad] == [(2, "malformed_json"), (4, "wrong_type")]


def test_a_text_that_is_json_is_a_text_where_it_is_called_prompt_or_answer(tmp_path):
    (row,), *_ = read(
        tmp_path, [{"q": '[{"role":"user","content":"x"}]', "a": '{"content": "y"}'}], fields={"prompt": "q", "answer": "a"}
    )
    assert said(row) == ([("user", '[{"role":"user","content":"x"}]')], '{"content": "y"}')


@pytest.mark.parametrize(
    ("record", "path", "beside"),
    [
        (
            {"p": json.dumps({"q": "hi", "session_id": "s1", "cost": 0.1}), "z": 1},
            "p.q",
            {"p": {"q": None, "session_id": "s1", "cost": 0.1}, "z": 1},
        ),
        ({"items": [{"q": "hi", "session_id": "s1"}, 2]}, "items[0].q", {"items": [{"q": None, "session_id": "s1"}, 2]}),
        ({"items": [{"q": "hi"}, 2]}, "items.0", {"items": [None, 2]}),
        ({"p": "plain", "z": 1}, "p.q", {"p": "plain", "z": 1}),
        ({"p": {"q": "hi", "r": {"s": 1}}}, "p.q", {"p": {"q": None, "r": {"s": 1}}}),
        ({"p": [1]}, "p[4].q", {"p": [1]}),
    ],
)
def test_what_stands_beside_a_path_stays_also_in_texts_and_lists(record, path, beside):
    before = json.dumps(record)
    assert FieldMapping(prompt=path, answer="a")._others(record) == beside and json.dumps(record) == before


def test_other_fields_read_the_objects_again(tmp_path):
    record = [{"q": "hé", "a": "yes", "b": "no"}]
    read(tmp_path, record, fields={"prompt": "q", "answer": "a"})
    (row,), *_ = read(tmp_path, record, fields={"prompt": "q", "answer": "b"})
    assert said(row)[1] == "no"


@pytest.mark.parametrize(("given", "said"), [
    ({"fields": {"request": "a", "prompt": "b", "response": "c"}}, "give one of request and prompt"),
    ({"fields": {"request": "a", "response": "b", "answer": "c"}}, "give one of response and answer"),
    ({"fields": {"response": "b"}}, "the request is missing"), ({"fields": {"prompt": "b"}}, "the answer is missing"),
    ({"fields": {}}, "nothing can be read"), ({"fields": {"id": "b", "feedback": "a[*]"}}, "names many values"),
    ({"fields": {"id": "b", "feedback": "a", "stars": "c"}}, "Extra inputs"),
    ({"fields": {"prompt": "b", "answer": "a"}, "format": "messages"}, "leave one of them out"),
])  # fmt: skip
def test_fields_that_make_no_sense_are_refused_when_the_recipe_is_read(given, said):
    with pytest.raises(ValidationError, match=said):
        SourceSettings(uri="logs", **given)


RECORD = {"payload": '{"request": {"messages": [{"content": "hé"}, {"content": "b"}]}}', "user.id": 7, "a b": {"c": False},
    "items": [{"x": [1, 2]}], "n": None}  # fmt: skip


@pytest.mark.parametrize(("path", "value"), [
    ("payload.request.messages[0].content", "hé"), ("$.payload.request.messages[-1].content", "b"), ("$.a b.c", False),
    ('["user.id"]', 7), ("$['user.id']", 7), ("items[0].x[1]", 2), ("items.0.x.1", 2), ("items[1].x", None), ("n", None),
    ("payload.request.absent", None), ("items.x", None), ("n.deeper", None), ("user.id", None), (" $.items[0]['x'][0] ", 1),
])  # fmt: skip
def test_a_path_reads_one_value_also_inside_json_text(path, value):
    steps = steps_of(path)
    assert value_at(RECORD, steps) == value
    assert steps_of(path_of(steps)) == steps


@pytest.mark.parametrize(
    "path",
    [
        "",
        "$",
        ".",
        "a..b",
        "a[*]",
        "*",
        "a.",
        "a[0",
        "[0]",
        "a]",
        'a["b]',
        "a[x]",
        "$..a",
        "a[?(@.b)]",
        "a[0]b",
        "a.b.",
        "a" + ".b" * 40,
    ],
)
def test_a_path_that_names_no_single_value_is_refused_in_one_sentence(path):
    with pytest.raises(ValueError, match=r"such as payload\.request or items"):
        steps_of(path)


WANTED = {
    "user_hash": keyed_hash(VALUES["user"]),
    "session_id": VALUES["session"],
    "model": VALUES["model"],
    "provider": VALUES["provider"],
    "status": "failure",
    "cost": 0.125,
    "latency_ms": 321.0,
    "ttft_ms": 12.0,
    "prompt_tokens": 71,
    "completion_tokens": 93,
    "workload_name": "w1",
}
NO_CHATS = {"feedback", "langfuse_scores"}


def read_marked(tmp_path, names, but=()):
    write_marked(tmp_path / "logs", names)
    sources = {
        name.partition(".")[0]: SourceSettings(
            uri=str(tmp_path / "logs" / name.partition(".")[0]), fields=fields_of(name, but), workloads={"w1": "tutor"}
        )
        for name in names
    }
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    ingest(tables, "tutor", sources)
    opened = [tables.open(name) for name in ("interactions", "feedback")]
    return [table.to_pyarrow_table().to_pylist() if table else [] for table in opened]


def check(tmp_path, names):
    rows, thumbs = read_marked(tmp_path, names)
    assert {row["source"] for row in rows} == {name.partition(".")[0] for name in names} - NO_CHATS
    wrong = {(row["source"], name, row[name]) for row in rows for name, value in WANTED.items() if row[name] != value}
    assert wrong == set()
    assert {str(row["ts"])[:19] for row in rows} == {"2026-01-02 03:04:05"}
    assert {row["source"] for row in rows if "ID-" not in f"{row['request_id']} {row['alias_id']}"} == set()
    rated = {thumb[name] for thumb in thumbs if thumb["value"] == 1 for name in ("given_id", "request_id")}
    assert {row["source"] for row in rows} == {
        row["source"] for row in rows if {row["interaction_id"], row["request_id"]} & rated - {None}
    }


def test_fields_hold_in_formats_of_data_sets_batches_and_spans(tmp_path):
    check(
        tmp_path, ["preferences.jsonl", "tokens.jsonl", "text.jsonl", "oasst.jsonl", "openai_batch.jsonl", "otlp_traces.jsonl"]
    )


@pytest.mark.slow
def test_fields_hold_in_every_format(tmp_path):
    check(tmp_path, NAMES)


def test_feedback_has_the_user_and_session_that_fields_name(tmp_path):
    _, thumbs = read_marked(tmp_path, ["feedback.jsonl", "langfuse_scores.jsonl"], but=("feedback",))
    assert {thumb["voter_hash"] for thumb in thumbs} == {WANTED["user_hash"]}
    assert {thumb["session_id"] for thumb in thumbs} == {VALUES["session"]}
    assert {str(thumb["ts"])[:19] for thumb in thumbs} == {"2026-01-02 03:04:05"} and len(thumbs) > 3


def test_a_path_of_the_user_that_no_record_has_is_said(tmp_path):
    pair = {"prompt": "why", "chosen": "so", "rejected": "no", "who": "ann"}
    for path, notes in (("who", []), ("whom", ["gateway: fields names the user at whom, and none of 2 rows has one"])):
        *_, report = read(tmp_path / path, [pair], fields={"user": path})
        assert [note.partition(": `")[0] for note in notes_on(report) if "fields names" in note] == notes


def test_a_user_beside_chunks_alone_is_the_answers(tmp_path):
    piece = {"id": "c7x7f", "object": "chat.completion.chunk", "who": "Ann@Mill.example"}
    chunks = [
        {"id": "c7x7f", "request": {"messages": [{"role": "user", "content": "why"}]}},
        piece | {"choices": [{"index": 0, "delta": {"content": "so"}}]},
        piece | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    [row], *_ = read(tmp_path, chunks, fields={"user": "who"})
    assert row["user_hash"] == keyed_hash("ann@mill.example") and '"so"' in row["completion"]
