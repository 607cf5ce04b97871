"""A survey: which sources a recipe should name for a folder, and what a first look says of each."""

import json
from datetime import date

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_ops.drafting.drafts import NgramIndex
from model_ops.drafting.measure_acceptance import replay
from resources.curating.shingles import RaggedLists
from resources.inspecting import source_survey as module
from resources.inspecting.inspection import InspectError, inspect
from resources.inspecting.overview import day_of_record, far_days, first_look
from resources.inspecting.prompt_lookup import pieces_of, replayed
from resources.inspecting.proposed_fields import proposed_fields
from resources.inspecting.source_survey import survey
from resources.sources.sources import SourceError, SourceSettings

PAIR = {
    "request": {
        "model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], "user": "u-1",
        "tools": [{"type": "function", "function": {"name": "f"}}],
    },
    "response": {"id": "r1", "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}]},
}  # fmt: skip
THUMB = {"response_id": "r1", "name": "thumbs", "value": 1}
SEED = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
ITEM = {"id": "1", "prompt": "p", "answer": "a"}


def put(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def kinds(root):
    return {found.name: (found.kind, found.uri.removeprefix(f"{root}/")) for found in survey([str(root)])}


def test_parts_of_a_folder_that_differ_are_sources_of_their_own(tmp_path):
    put(tmp_path / "gateway" / "2026-06-01.jsonl", PAIR)
    put(tmp_path / "Thumbs & more" / "x.jsonl", THUMB)
    put(tmp_path / "seeds.jsonl", SEED)
    put(tmp_path / "evals" / "suite.jsonl", ITEM)
    put(tmp_path / "notes.json", {"a": 1})
    assert kinds(tmp_path) == {
        "gateway": ("logs", "gateway"),
        "thumbs-more": ("feedback", "Thumbs & more"),
        "seeds": ("seeds", "seeds.jsonl"),
        "evals": ("evals", "evals"),
        "notes": ("unknown", "notes.json"),
    }


def test_a_folder_of_days_is_one_source_and_so_is_one_of_one_format(tmp_path):
    for day in ("dt=2026-06-01", "dt=2026-06-02"):
        put(tmp_path / "gateway" / day / "part.jsonl", PAIR)
    for name in ("a", "b"):
        put(tmp_path / "same" / name / "part.jsonl", PAIR)
    assert [found.uri for found in survey([str(tmp_path / "gateway"), str(tmp_path / "same")])] == [
        str(tmp_path / "gateway"),
        str(tmp_path / "same"),
    ]


def test_files_that_differ_in_their_day_alone_are_one_pattern(tmp_path):
    for day in ("2026-06-01", "2026-06-02"):
        put(tmp_path / f"gateway-{day}.jsonl", PAIR)
        put(tmp_path / f"thumbs-{day}.jsonl", THUMB)
    assert kinds(tmp_path) == {"gateway": ("logs", "gateway-*.jsonl"), "thumbs": ("feedback", "thumbs-*.jsonl")}


def test_names_are_unique_and_fit_for_a_recipe(tmp_path):
    put(tmp_path / "one" / "Ünïcode Lögs.jsonl", PAIR)
    put(tmp_path / "two" / "Ünïcode Lögs.jsonl", PAIR)
    names = [found.name for found in survey([str(tmp_path / folder / "Ünïcode Lögs.jsonl") for folder in ("one", "two")])]
    assert names == ["n-code-l-gs", "n-code-l-gs-2"]


def test_files_of_no_known_format_are_sources_with_the_fields_that_each_needs(tmp_path):
    for name, (ask, say) in {"a": ("asked", "reply"), "b": ("asked", "reply"), "c": ("user_message", "reply")}.items():
        put(tmp_path / f"{name}.jsonl", *({ask: f"what is {n}?", say: f"it is {n}"} for n in range(4)))
    found = survey([str(tmp_path)])
    assert [(each.kind, each.look.proposed["prompt"]) for each in found] == [
        ("logs", "asked"),
        ("logs", "asked"),
        ("logs", "user_message"),
    ]
    (tmp_path / "c.jsonl").unlink()
    [whole] = survey([str(tmp_path)])
    assert whole.uri == str(tmp_path) and whole.look.proposed == {"prompt": "asked", "answer": "reply"}


def test_nothing_there_is_said(tmp_path):
    with pytest.raises(SourceError, match="no file or directory"):
        survey([str(tmp_path / "nowhere")])


def test_a_first_look_tells_formats_tools_system_prompts_and_users(tmp_path):
    put(tmp_path / "a.jsonl", PAIR, PAIR, {"odd": 1})
    look = first_look("a", SourceSettings(uri=str(tmp_path)))
    assert dict(look.formats) == {"openai_pairs": 2} and look.unknown_records == 1 and look.unknown_keys == "odd"
    (tmp_path / "broken.csv").write_text('a;b;c\n1;"x"y;z\n1;two words;z\n1;two words;z\n')
    assert first_look("x", SourceSettings(uri=str(tmp_path / "broken.csv"))).unknown_records == 2
    assert look.has_tools and look.with_system and look.has_users and look.holds_logs


def test_a_declared_format_that_the_records_are_not_of_is_told(tmp_path):
    put(tmp_path / "a.jsonl", PAIR)
    look = first_look("a", SourceSettings(uri=str(tmp_path), format="litellm"))
    assert not look.formats
    assert look.problems[0][1].startswith("its first records are not of the format litellm")


def test_objects_without_records_are_told(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "text.jsonl").write_text("no json\n")
    look = first_look("a", SourceSettings(uri=str(tmp_path)))
    assert [said.split(";")[0] for _, said in look.problems] == ["is empty", "no line of the file is a JSON object"]
    assert not look.holds_logs and not look.holds_feedback_only


JUNE = date(2026, 6, 1)


@pytest.mark.parametrize(
    ("days", "said"),
    [
        ({date(2000, 1, 1): 1, JUNE: 900}, "1 record of 2000-01-01 lies more than a year from the others"),
        ({JUNE: 2, date(2099, 1, 1): 1}, "1 record of 2099-01-01 lies more than a year from the others"),
        ({date(2022, 6, 1): 1, JUNE: 1}, "1 record of 2022-06-01 lies more than a year from the others"),
        (
            {date(1970, 1, day): 1 for day in range(1, 6)} | {JUNE: 900},
            "5 records of 1970-01-01, 1970-01-02, 1970-01-03 and 2 other days lie more than a year from the others",
        ),
        ({date(2026, month, 1): 1 for month in range(1, 7)}, ""),
        ({date(2025, 8, 1): 1, JUNE: 3}, ""),
        ({JUNE: 1}, ""),
        ({}, ""),
    ],
)
def test_days_far_from_the_others(days, said):
    assert far_days(days) == said


@pytest.mark.parametrize("record", [
    {"response": {"created": 1780300800}}, {"ts": "2026-06-01T08:00:00Z"}, {"startTime": 1780300800123},
    {"time": "1780300800123456789"}, {"timestamp": "2026-06-01 08:00:00"}, {"started_at": 1780300800123456},
])  # fmt: skip
def test_the_day_of_a_record(record):
    assert list(day_of_record(json.dumps(record))) == [JUNE]


def test_a_record_without_a_day():
    assert not list(day_of_record('{"messages": [], "time": "soon", "created": "2026-13-41", "ts": 0}'))


@pytest.mark.parametrize("spelled", ["link", "link/../logs", "file://{}/link", "./logs//"])
def test_a_linked_folder_has_the_root_that_its_objects_are_listed_under(tmp_path, monkeypatch, spelled):
    for part in ("gateway", "thumbs"):
        (tmp_path / "logs" / part).mkdir(parents=True)
        for number in range(40):
            (tmp_path / "logs" / part / f"{number}.jsonl").write_text(json.dumps({"response_id": "1", "value": 1}) + "\n")
    (tmp_path / "link").symlink_to("logs")
    monkeypatch.chdir(tmp_path)
    assert module._root(spelled.format(tmp_path)) == f"{tmp_path}/logs/"


UUID = "3f2504e0-4f89-41d3-9a0c-0305e82c330"
ASKED = [{"role": "user", "content": "what is it?"}]
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "it is that"}}]}


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        (
            lambda n: {
                "uuid": f"{UUID}{n}",
                "payload": json.dumps({"question": "what is it?", "reply": "it is that"}),
                "created": f"2026-06-01T10:00:0{n}Z",
                "usr": {"email": "a@b"},
                "stars": 5,
            },
            {
                "prompt": "payload.question",
                "answer": "payload.reply",
                "id": "uuid",
                "time": "created",
                "user": "usr.email",
                "feedback": "stars",
            },
        ),
        (
            lambda n: {"a": f"{UUID}{n}", "b": {"x": ASKED}, "c": {"d": f"it is that, for {n}"}, "e": 1780300000 + n},
            {"request": "b.x", "answer": "c.d", "id": "a", "time": "e"},
        ),
        (
            lambda n: {
                "event_id": n,
                "body": json.dumps({"model": "m", "messages": ASKED}),
                "res": json.dumps(ANSWER),
                "thumb": "up" if n == 2 else None,
            },
            {"request": "body", "response": "res", "id": "event_id", "feedback": "thumb"},
        ),
        (lambda n: {"ref": n, "thumbs_up": True, "request_id": f"r{n}"}, {"id": "request_id", "feedback": "thumbs_up"}),
        (lambda n: {"k": f"what is this thing, {n}", "v": f"a longer text that answers {n}"}, {"prompt": "k", "answer": "v"}),
        (lambda n: {"chat": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}, {"messages": "chat"}),
        (
            lambda n: {"User Message": "hi there", "Bot Reply": "yes ok", "user.id": "7"},
            {"prompt": "User Message", "answer": "Bot Reply", "user": '["user.id"]'},
        ),
        (
            lambda n: {
                "timestamp": 1780300000 + n,
                "level": "info",
                "msg": "GET /health 200 is fine",
                "logger": "the access log",
            },
            {},
        ),
        (
            lambda n: {"body": {"ask": {"text": f"what is it, {n}?"}, "reply": "it is that"}},
            {"prompt": "body.ask.text", "answer": "body.reply"},
        ),
        (lambda n: {"level": "info", "event": "started"}, {}),
        (lambda n: {"prompt_id": n, "score": n}, {"id": "prompt_id", "feedback": "score"}),
    ],
)
def test_fields_are_found_by_name_and_shape(record, fields):
    found = proposed_fields([record(number) for number in range(5)])
    assert {name: path for name, path in found.items() if name in fields or not fields} == fields


def test_inspect_prints_a_mapping_that_the_recipe_accepts(tmp_path):
    lines = [{"no": n, "ask": f"what is {n}, please?", "reply": f"it is {n} of course", "say": [n]} for n in range(30)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(InspectError) as raised:
        inspect([str(tmp_path / "a.jsonl")])
    import yaml

    [source] = yaml.safe_load(str(raised.value).split("\n\n", 1)[1])["sources"].values()
    assert source["fields"]["prompt"] == "ask" and source["fields"]["answer"] == "reply"
    from resources.records.field_mapping import FieldMapping

    found = inspect([source["uri"]], fields={source["uri"]: FieldMapping(**source["fields"])})
    assert found.totals["rows"] == 30 and not found.proposed


def ragged(lists):
    values = np.array([value for each in lists for value in each], np.uint64)
    return RaggedLists(values, np.cumsum([0, *map(len, lists)]).astype(np.int64))


def counted(rows, draft):
    return replayed(ragged([prompt for prompt, _ in rows]), ragged([answer for _, answer in rows]), draft)


tokens = st.lists(st.integers(0, 4), max_size=60)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.tuples(tokens, tokens), min_size=1, max_size=4), draft=st.integers(1, 6))
def test_counts_are_those_of_the_reference(rows, draft):
    found = counted(rows, draft)
    for place, (prompt, answer) in enumerate(rows):
        forwards, *_ = replay(NgramIndex(prompt), answer, [], draft)
        assert found.forwards[place] == forwards
        assert found.emitted[place] == max(len(answer) - 1, 0)


def test_an_answer_that_repeats_its_prompt_needs_few_forwards_and_a_new_one_as_many_as_tokens():
    copied, fresh = (list(range(100)), list(range(100))), (list(range(100)), list(range(100, 200)))
    found = counted([copied, fresh], 3)
    assert found.forwards.tolist() == [25, 99]
    assert (found.emitted / found.forwards).round(2).tolist() == [3.96, 1.0]


def test_one_answer_for_each_prompt():
    with pytest.raises(ValueError, match="2 prompts and 1 answers"):
        replayed(ragged([[1], [2]]), ragged([[1]]), 3)


@pytest.mark.parametrize("text, count", [
    ("", 0), (None, 0), ("hello world", 2), ("internationalisation", 3), ("12345", 2), ("a  b", 3), ("====", 1), ("x == y", 4),
    ("日本", 2), (" \n\n", 2),
])  # fmt: skip
def test_pieces(text, count):
    assert pieces_of(pa.array([text], pa.string())).lengths.tolist() == [count]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=5))
def test_the_same_texts_have_the_same_pieces_wherever_they_stand(texts):
    together = pieces_of(pa.array(texts, pa.string()))
    for place, text in enumerate(texts):
        alone = pieces_of(pa.array(["x" * 7, text], pa.string()).slice(1))
        assert together.values[together.offsets[place] : together.offsets[place + 1]].tolist() == alone.values.tolist()
