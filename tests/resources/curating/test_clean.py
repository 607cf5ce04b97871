"""Per-row facts: statuses, placeholders, feedback, signatures; the same whatever days are cleaned together."""

import json
import math
from collections import defaultdict
from datetime import date, timedelta

import pyarrow as pa
import pytest
from interaction_rows import START, days_of, interaction, read, store, thumb

from resources.curating.cleaning import clean, stale_days
from resources.curating.curation import CurationSettings, FeedbackRules
from resources.curating.request_topics import LEAST_PEOPLE, attach_topics, stored_topics
from resources.curating.row_feedback import feedback_notes
from resources.lake.lake import LakeLayout
from resources.lake.sql_files import workbench
from resources.lake.tables import Tables
from tests.thorough_cases import thorough_except

TEXT = "please explain how the garbage collector of this runtime finds cycles between objects"


def cleaned(tables, rows, settings=None, feedback=()):
    store(tables, "interactions", rows)
    if feedback:
        store(tables, "feedback", list(feedback))
    report = clean(tables, "tutor", days_of(rows), settings or CurationSettings())
    return report, {row["interaction_id"]: row for row in read(tables, "cleaned_interactions")}


def test_each_row_gets_a_status_and_one_decision(tables):
    rows = [
        interaction(1, TEXT, "It marks and sweeps."),
        interaction(2, TEXT, "", error="upstream timeout", status="failure"),
        interaction(3, TEXT, "It marks and", finish_reason="length"),
        interaction(4, TEXT, "   "),
        interaction(5, TEXT, "It marks and sweeps.", cache_hit=True),
        interaction(6, TEXT, {"role": "assistant", "content": None, "refusal": "I cannot help with that."}),
        interaction(7, TEXT, "x", completion="{not json"),
        interaction(8, TEXT, "x", messages='{"role": "user"}'),
        interaction(
            9,
            TEXT,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}],
            },
        ),
        interaction(10, [], "Hello, I am here."),
        interaction(11, TEXT, "x", status="503"),
        interaction(12, TEXT, "x", completion=None, error="connection reset"),
    ]
    report, found = cleaned(tables, rows)
    statuses = {name: row["status"] for name, row in found.items()}
    assert statuses == {
        "i1": "ok",
        "i2": "error",
        "i3": "truncated",
        "i4": "empty",
        "i5": "cache_hit",
        "i6": "refused",
        "i7": "empty",
        "i8": "unreadable",
        "i9": "ok",
        "i10": "empty",
        "i11": "error",
        "i12": "error",
    }
    decisions = {row["interaction_id"]: row for row in read(tables, "decisions")}
    assert len(decisions) == len(rows) == report.read
    assert {name for name, row in decisions.items() if row["kept"]} == {"i1", "i9"}
    assert decisions["i3"]["rule"] == "truncated" and decisions["i1"]["rule"] == "kept"
    assert report.days[rows[0]["dt"]] | report.dropped == report.days[rows[0]["dt"]]
    assert report.days[rows[0]["dt"]]["rows"] == 12 and report.days[rows[0]["dt"]]["kept"] == 2
    assert report.rows == 2 and sum(report.dropped.values()) == 10
    assert found["i3"]["signature"] == [] and len(found["i1"]["signature"]) == 29


def test_text_that_is_no_json_takes_its_own_row_only(tables):
    """A day must not fail for one such text."""
    broken = ["{not json", "", '"text"', "null", None, '[{"role":"user","content":"\\ud83d x"}]']
    calling = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    rows = [interaction(n, TEXT, "Fine.", messages=messages, session_id=None) for n, messages in enumerate(broken)]
    rows += [interaction(6, TEXT, "Fine.", tools="{bad"), interaction(7, TEXT, calling, tools="{bad")]
    report, found = cleaned(tables, rows)
    assert [found[f"i{n}"]["status"] for n in range(6)] == ["unreadable"] * 6
    assert report.read == 8 and found["i6"]["status"] == found["i7"]["status"] == "ok"


def test_a_rule_that_is_off_lets_rows_through(tables):
    rows = [interaction(1, TEXT, "It marks and", finish_reason="length")]
    _, found = cleaned(tables, rows, CurationSettings(status={"drop_truncated": False}))
    assert found["i1"]["status"] == "ok"


def test_personal_data_becomes_placeholders_that_hold_for_the_session(tables):
    card = "4111 1111 1111 1111"
    rows = [
        interaction(
            1,
            f"I am ann@example.org, card {card}, and 4111 1111 1111 1112 is no card",
            "Thank you, ann@example.org",
            session_id="a",
        ),
        interaction(2, "Write\nbob@example.org or ANN@example.org", "Done", session_id="a", minutes=5),
        interaction(3, "bob@example.org says hello to everyone in the group", "Fine", session_id="b"),
        interaction(4, "nothing at all to hide here", "Fine", session_id="b"),
    ]
    report, found = cleaned(tables, rows)
    first = json.loads(found["i1"]["messages"])[0]["content"]
    assert first == "I am <EMAIL_1>, card <CARD_1>, and 4111 1111 1111 1112 is no card"
    assert json.loads(found["i1"]["completion"])["content"] == "Thank you, <EMAIL_1>"
    assert json.loads(found["i2"]["messages"])[0]["content"] == "Write\n<EMAIL_2> or <EMAIL_1>"
    assert json.loads(found["i3"]["messages"])[0]["content"].startswith("<EMAIL_1> says")
    assert found["i4"]["messages"] == rows[3]["messages"]
    assert report.pii == {"CARD": 1, "EMAIL": 5} and dict(found["i1"]["pii"]) == {"EMAIL": 2, "CARD": 1}


def test_every_kind_is_found_when_it_stands_alone(tables):
    alone = {
        "EMAIL": ["a@b.org", "ann\\u0040example.org"],
        "CARD": ["4000 0020 5284 5722", "378282246310005"],
        "IBAN": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432"],
        "PHONE": ["+49 30 901820", "(555) 234-5678"],
        "SECRET": [
            "sk-proj-abcdefghij0123456789ABCD",
            "AKIAIOSFODNN7EXAMPLE",
            "ghp_0123456789abcdefghijABCDEFGHIJ012345",
            "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----",
            "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
            "xoxb-1234567890ab",
            "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeK",
            "sk_live_abcdefghijklmnop",
        ],
    }
    rows = [
        interaction(
            f"{kind}{n}",
            f"see {value} there",
            "Done",
            **({"messages": f'[{{"role": "user", "content": "see {value} there"}}]'} if "u0040" in value else {}),
        )
        for kind, values in alone.items()
        for n, value in enumerate(values)
    ]
    _, found = cleaned(tables, rows)
    for kind, values in alone.items():
        for n in range(len(values)):
            assert json.loads(found[f"i{kind}{n}"]["messages"])[0]["content"] == f"see <{kind}_1> there"


def test_personal_data_stays_where_the_recipe_says_keep(tables):
    _, found = cleaned(tables, [interaction(1, "mail ann@example.org", "Done")], CurationSettings(pii="keep"))
    assert "ann@example.org" in found["i1"]["messages"]


def test_feedback_by_its_most_telling_id_newest_first(tables):
    rows = [
        interaction(1, TEXT, "one"),
        interaction(2, TEXT, "two"),
        interaction(3, TEXT, "three", trace_id="t"),
        interaction(4, TEXT, "four"),
        interaction(5, TEXT, "five"),
        interaction(6, TEXT, "six"),
    ]
    feedback = [
        thumb(1, interaction_id="i1"),
        thumb(-1, session_id="s1"),
        thumb(-1, request_id="r2"),
        thumb(1, trace_id="t"),
        thumb(-1, session_id="s4", ts=START),
        thumb(1, session_id="s4", ts=START + timedelta(days=2)),
        thumb(1, interaction_id="i5"),
        {**thumb(0.2, interaction_id="i5"), "name": "quality"},
    ]
    _, found = cleaned(tables, rows, feedback=feedback)
    assert {name: row["feedback"] for name, row in found.items()} == {
        "i1": 1,
        "i2": -1,
        "i3": 1,
        "i4": 1,
        "i5": 0.2,
        "i6": None,
    }


@pytest.mark.parametrize(
    ("least", "expected"),
    [(None, [-1, 1, -0.25, -1]), ({}, [0, 1, 0.75, -1]), ({"reward": 0.5, "thumbs": -2}, [-0.5, 1, 0.75, 1])],
)
def test_feedback_below_the_least_good_value_of_its_name_counts_as_a_thumb_down(tables, least, expected):
    """Without the setting: a trajectory's reward is good from 1."""
    rows = [interaction(n, f"{TEXT} {n}", f"answer {n}") for n in range(1, 5)]
    feedback = [{**thumb(value, interaction_id=f"i{n}"), "name": "reward"} for n, value in ((1, 0), (2, 1), (3, 0.75))]
    feedback.append(thumb(-1, interaction_id="i4"))
    settings = CurationSettings() if least is None else CurationSettings(feedback={"least": least})
    _, found = cleaned(tables, rows, settings, feedback=feedback)
    assert [found[f"i{n}"]["feedback"] for n in range(1, 5)] == expected
    assert stale_days(tables, "tutor", settings) == []
    assert stale_days(tables, "tutor", CurationSettings(feedback={"least": {"reward": 2}})) != []


@pytest.mark.parametrize(("values", "least"), [
    ([1, 2, 5], 4), ([1, 10, 7], 7), ([0, 50, 100], 70), ([0.2, 0.5, 0.9], 0.5), ([1, 1], None), ([-1, 5, 3], None),
    ([3, 700, 12], None), ([math.nan, 1], None), ([], None),
])  # fmt: skip
def test_a_scale_without_a_least_good_value_is_said_with_a_guess(tables, values, least):
    store(tables, "interactions", [interaction(n, f"{TEXT} {n}", f"answer {n}") for n in range(1, 5)])
    feedback = [{**thumb(value, interaction_id=f"i{n}"), "name": "stars"} for n, value in enumerate(values, 1)]
    store(tables, "feedback", [*feedback, thumb(1, interaction_id="i4")])
    said = " ".join(feedback_notes(tables, "tutor", FeedbackRules()))
    assert bool(said) == (least is not None)
    if least is not None:
        assert f"feedback stars ({min(values):g} to {max(values):g}): each value above 0 counts as a thumb up" in said
        assert said.endswith(f"`curation: {{feedback: {{least: {{reward: 1.0, stars: {least}}}}}}}`")
    assert list(feedback_notes(tables, "tutor", FeedbackRules(least={"stars": 0.0}))) == []


def test_cleaning_again_or_day_by_day_changes_nothing(tables, tmp_path):
    rows = [
        interaction(n, f"{TEXT} {n} ann{n % 3}@example.org", f"answer {n}", day=n % 3, session_id=f"s{n % 4}")
        for n in range(30)
    ]
    _, together = cleaned(tables, rows)
    clean(tables, "tutor", days_of(rows), CurationSettings())
    assert {row["interaction_id"]: row for row in read(tables, "cleaned_interactions")} == together
    apart = Tables(LakeLayout.open(tmp_path / "apart"))
    store(apart, "interactions", rows)
    for day in reversed(days_of(rows)):
        clean(apart, "tutor", [day], CurationSettings())
    assert {row["interaction_id"]: row for row in read(apart, "cleaned_interactions")} == together
    assert len(read(apart, "decisions")) == 30


def test_parts_of_a_day_give_the_same_rows_and_counts(tables, tmp_path, monkeypatch):
    rows = [
        interaction(
            number,
            f"{TEXT} for person{number % 5}@example.org",
            "It marks and sweeps.",
            session_id=f"s{number % 7}",
            ts=START + timedelta(hours=3 * number),
        )
        for number in range(12)
    ]
    at_once, found = cleaned(tables, rows)
    monkeypatch.setattr("resources.curating.cleaning.BYTES_AT_A_TIME", 1_400)
    other = Tables(LakeLayout.open(tmp_path / "other"))
    in_parts, found_in_parts = cleaned(other, rows)
    assert found_in_parts == found
    assert in_parts == at_once and at_once.pii == {"EMAIL": 12}
    assert len(read(other, "decisions")) == len(rows)


def test_a_row_that_is_gone_from_its_day_is_gone_here_too(tables):
    rows = [interaction(1, TEXT, "one"), interaction(2, TEXT, "two")]
    cleaned(tables, rows)
    store(tables, "interactions", rows[:1])
    clean(tables, "tutor", days_of(rows), CurationSettings())
    assert [row["interaction_id"] for row in read(tables, "cleaned_interactions")] == ["i1"]
    assert [row["interaction_id"] for row in read(tables, "decisions")] == ["i1"]


def test_days_without_rows_are_no_mistake(tables):
    report = clean(tables, "tutor", [date(2026, 6, 1)], CurationSettings())
    assert (report.read, report.rows) == (0, 0)
    assert clean(tables, "tutor", [], CurationSettings()).read == 0


def test_conversations_without_session_ids_share_a_session_by_their_beginning(tables):
    turn = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello out there"}]
    later = [*turn, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "and now?"}]
    rows = [
        interaction(1, turn, "hi", session_id=None),
        interaction(2, later, "now this", session_id=None, minutes=1),
        interaction(3, "another thing", "yes", session_id=None),
        interaction(4, [], "x", session_id=None),
    ]
    _, found = cleaned(tables, rows)
    assert found["i1"]["session_id"] == found["i2"]["session_id"] != found["i3"]["session_id"]
    assert found["i4"]["session_id"] == "alone:i4"


def test_prompt_shapes_tell_products_and_intents_apart(tables):
    def ask(number, system, text):
        return interaction(number, [{"role": "system", "content": system}, {"role": "user", "content": text}], "fine")

    _, found = cleaned(
        tables,
        [
            ask(1, "You write code. Today is 2026-06-01.", "Explain this"),
            ask(2, "You write code. Today is 2026-06-02.", "explain that"),
            ask(3, "You write code. Today is 2026-06-02.", "Complete that"),
            ask(4, "You sell shoes.", "Explain this"),
        ],
    )
    shapes = [found[f"i{n}"]["prompt_shape"] for n in (1, 2, 3, 4)]
    assert shapes[0] == shapes[1] and len(set(shapes)) == 3 and shapes[0].startswith("explain#")


def test_prompt_shapes_tell_tools_and_their_results_apart(tables):
    tools = json.dumps(
        [{"type": "function", "function": {"name": "weather"}}, {"type": "function", "function": {"name": "sum"}}]
    )
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    }
    ask = {"role": "user", "content": "How is it outside?"}
    result = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
    _, found = cleaned(
        tables,
        [
            interaction(1, [ask], "call", tools=tools),
            interaction(2, [ask], "none"),
            interaction(3, [ask, call, result], "it rains", tools=tools),
            interaction(4, [ask, call, result | {"name": "sum"}], "it rains", tools=tools),
            interaction(5, [ask, call, result, result], "it rains", tools=json.dumps(json.loads(tools)[::-1])),
        ],
    )
    shapes = [found[f"i{n}"]["prompt_shape"].split("#") for n in (1, 2, 3, 4, 5)]
    assert [word for word, _ in shapes] == ["outside", "outside", "result of weather", "result of sum", "result of weather"]
    assert len({key for _, key in shapes}) == 2 and shapes[1][1] != shapes[0][1] == shapes[4][1]


def test_a_greeting_is_no_prompt_shape(tables):
    """What a session asks for names all its requests, also those that say hello, ok or thanks."""
    hello = {"role": "user", "content": "Hello!"}
    talk = [
        hello,
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": "hi, please refund order 4432"},
        {"role": "assistant", "content": "It is done."},
        {"role": "user", "content": "ok thanks"},
    ]
    _, found = cleaned(
        tables,
        [
            *(interaction(turns, talk[:turns], "Sure.", session_id="s", minutes=turns) for turns in (1, 3, 5)),
            interaction(6, [hello], "Hello!", session_id="t"),
            interaction(7, "Good morning, REFUND of a@b.example, please", "Sure.", session_id="u"),
        ],
    )
    assert [found[f"i{n}"]["prompt_shape"].split("#")[0] for n in (1, 3, 5, 6, 7)] == [
        "refund",
        "refund",
        "refund",
        "",
        "refund",
    ]


def test_before_there_are_topics_the_first_word_is_one_also_where_two_begin_alike():
    with workbench() as connection:
        for words in (("pay", "payment"), ("payment", "pay")):
            connection.register("asked_words", pa.table({"interaction_id": ["i1"] * 2, "word": words, "place": [3, 3]}))
            connection.register("conversations", pa.table({"interaction_id": ["i1"], "session_id": ["s"], "ts": [1]}))
            attach_topics(connection, None)
            assert connection.table("row_topics").fetchall() == [("i1", "pay")]


ASKED = {
    "refund": ("i want a refund, the lamp arrived broken", "refund my broken lamp", "money back for a broken lamp: refund"),
    "password": ("my password does not work, i cannot login", "reset the password of my login", "login fails since the password reset"),
}  # fmt: skip
ANSWERS = {"refund": "The refund is on its way.", "password": "A link to reset your password was sent."}


def asked(count, first=0):
    kinds = list(ASKED)
    return [
        interaction(
            first + n,
            f"{('Hi', 'hello,', 'Good morning.', '')[n % 4]} {ASKED[kinds[n % 2]][n // 2 % 3]} {n}",
            ANSWERS[kinds[n % 2]],
            session_id=f"s{first + n}",
        )
        for n in range(count)
    ]


def test_prompt_shapes_are_what_many_people_ask_for_and_stay_so(tables, monkeypatch):
    monkeypatch.setattr("resources.curating.cleaning.BYTES_OF_TOPICS", 1_000)  # long prompts: a part has few people
    _, found = cleaned(tables, asked(LEAST_PEOPLE))
    shapes = defaultdict(set)
    for row in found.values():
        shapes[row["prompt_shape"].split("#")[0]].add("refund" if "broken" in row["messages"] else "password")
    assert all(len(name.split()) == 3 and len(kinds) == 1 for name, kinds in shapes.items()) and 2 <= len(shapes) <= 6
    kept = stored_topics(tables.lake, "tutor")
    assert kept is not None
    assert not {"hello", "morning", "the"} & {word for name in kept["name"].to_pylist() for word in name.split()}
    _, later = cleaned(
        tables,
        [
            interaction(900, "please translate the refund letter", "Gern.", session_id="x"),
            interaction(901, "something about boats", "Boats float.", session_id="y"),
        ],
    )
    assert later["i900"]["prompt_shape"].split("#")[0] in shapes and later["i901"]["prompt_shape"].startswith("other#")
    assert stored_topics(tables.lake, "tutor") == kept


WITHOUT_SPACES = {
    "Chinese": (("我想{}、12345", "你好、请问怎么{}。", "麻烦帮我{}一下", "{}、谢谢"), ("申请退款", "重置密码", "查物流进度", "开发票"), "好的、已经处理、请稍等。"),
    "Japanese": (("{}をお願いします。12345です", "こんにちは、{}について教えてください", "{}したいのですが", "{}はできますか"), ("返金", "パスワードの再設定", "配送状況の確認", "領収書の発行"), "承知しました。手続きをしました。"),
    "Korean": (("{}을 하고 싶어요, 12345", "안녕하세요, {}은 어떻게 하나요?", "{}을 해주세요", "{}이 있나요"), ("환불", "비밀번호 재설정", "배송 조회", "영수증 발급"), "네, 처리되었습니다."),
    "Thai": (("อยาก{}12345", "สวัสดีครับ {}ยังไง", "ช่วย{}หน่อยค่ะ", "{}ได้ไหมคะ"), ("คืนเงิน", "รีเซ็ตรหัสผ่าน", "ติดตามพัสดุ", "ออกใบเสร็จ"), "ดำเนินการเรียบร้อยแล้วค่ะ"),
}  # fmt: skip
"""Frames, what is asked for in them, and what every answer says."""


@pytest.mark.parametrize("language", thorough_except(["Chinese", "Japanese", "Korean"], WITHOUT_SPACES))
def test_prompt_shapes_of_languages_without_spaces_tell_requests_apart_and_stay_so(tables, language):
    """Also those of Korean, whose words end in what they are in the sentence."""
    frames, wanted, answer = WITHOUT_SPACES[language]

    def shapes_of(count, day):
        """What the requests of a day ask for, by the name of their shape."""
        rows = [
            interaction(
                1000 * day + n,
                frames[n // 4 % 4].format(wanted[n % 4]),
                answer + wanted[n % 4] * (n % 2),
                session_id=f"s{day}-{n}",
                day=day,
            )
            for n in range(count)
        ]
        shapes = defaultdict(set)
        for name, row in cleaned(tables, rows)[1].items():
            if int(name[1:]) // 1000 == day:
                shapes[row["prompt_shape"].split("#")[0]].add(wanted[int(name[1:]) % 4])
        return shapes

    assert len(shapes_of(16, 0)) >= 4  # before there are topics: by their first pieces
    shapes = shapes_of(LEAST_PEOPLE, 1)
    assert len(shapes) == 4 and all(len(kinds) == 1 and name != "other" for name, kinds in shapes.items()), shapes
    assert shapes_of(16, 2) == shapes


def test_near_signatures_see_what_is_new_not_the_history(tables):
    long = " ".join(f"word{n}" for n in range(200))
    turn = [{"role": "user", "content": long}]
    later = [*turn, {"role": "assistant", "content": long[::-1]}, {"role": "user", "content": TEXT}]
    rows = [
        interaction(1, turn, long[::-1]),
        interaction(2, later, "It marks and it sweeps"),
        interaction(3, TEXT, "It marks and it sweeps"),
    ]
    _, found = cleaned(tables, rows)
    assert found["i2"]["signature"] == found["i3"]["signature"]
    assert sum(a == b for a, b in zip(found["i1"]["signature"], found["i2"]["signature"], strict=True)) < 10
    assert found["i2"]["normalised_sha256"] != found["i3"]["normalised_sha256"]


def test_texts_of_fewer_words_than_a_shingle_have_no_signature(tables):
    _, found = cleaned(tables, [interaction(1, "yes", "of course, sir")])
    assert found["i1"]["signature"] == [] and found["i1"]["status"] == "ok"


def test_days_that_changed_since_they_were_cleaned_are_known(tables):
    rows = [interaction(1, "Go", "north"), interaction(2, "Go", "south", day=1), interaction(3, "Go", "east", day=2)]
    store(tables, "interactions", rows)
    days = days_of(rows)
    assert stale_days(tables, "tutor") == days
    clean(tables, "tutor", days, CurationSettings())
    assert stale_days(tables, "tutor") == []
    late = interaction(4, "Go", "west", day=1)
    changed = interaction(3, "Go", "further east", day=2, content_sha256="another")
    store(tables, "interactions", [*rows[1:2], late])
    store(tables, "interactions", [changed])
    assert stale_days(tables, "tutor") == days[1:]


def test_a_day_that_was_found_fresh_is_not_compared_again(tables, monkeypatch):
    from resources.curating import cleaning as module

    rows = [interaction(1, "Go", "north"), interaction(2, "Go", "south", day=1), interaction(3, "Go", "east", day=2)]
    settings = CurationSettings()
    store(tables, "interactions", rows)
    compared, original = [], module._stale_rows
    monkeypatch.setattr(
        module,
        "_stale_rows",
        lambda tables, workload, days, digest: (compared.append(list(days)), original(tables, workload, days, digest))[1],
    )
    days = days_of(rows)
    assert stale_days(tables, "tutor", settings) == days
    clean(tables, "tutor", days, settings)
    assert stale_days(tables, "tutor", settings) == [] == stale_days(tables, "tutor", settings)
    assert compared == [days, days, []]
    store(tables, "interactions", [interaction(2, "Go", "west", day=1)])
    assert stale_days(tables, "tutor", settings) == [days[1]] and compared[-1] == [days[1]]
    clean(tables, "tutor", [days[1]], settings)
    other = CurationSettings(repetition={"repeats": 64})
    assert stale_days(tables, "tutor", other) == days and compared[-1] == days
    assert stale_days(tables, "tutor", settings) == []


def test_a_day_is_stale_when_people_say_something_else_of_a_row(tables):
    rows = [interaction(1, "Go", "north"), interaction(2, "Go", "south", day=1)]
    settings = CurationSettings()
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), settings)
    assert stale_days(tables, "tutor", settings) == []
    store(tables, "feedback", [thumb(-1, interaction_id="i2")])
    for _ in range(2):
        assert stale_days(tables, "tutor", settings) == days_of(rows)[1:]
    clean(tables, "tutor", days_of(rows)[1:], settings)
    assert stale_days(tables, "tutor", settings) == []
    store(tables, "feedback", [thumb(1, interaction_id="i2")])
    assert stale_days(tables, "tutor", settings) == days_of(rows)[1:]


def corrected(said, of="i1", **about):
    return thumb(0, interaction_id=of, name="correction", label="corrected", comment=said, **about) | {"value": None}


def test_a_correction_stands_in_place_of_the_answer(tables):
    rows = [
        interaction(1, "Who writes to us?", "Nobody, I fear", finish_reason="length", reasoning="No letters today."),
        interaction(2, "Who else?", "Bert."),
        interaction(3, "And who calls?", "Carla, at noon."),
    ]
    edits = [
        corrected("Somebody else.", ts=START),
        corrected("Anna, from anna@example.com."),
        corrected(" bert. ", of="i2"),
        corrected("Dora.", of="i3") | {"label": "unchanged"},
    ]
    _, found = cleaned(tables, rows, feedback=edits)
    row = found["i1"]
    assert json.loads(row["completion"]) == {"role": "assistant", "content": "Anna, from <EMAIL_1>."} and row["status"] == "ok"
    assert json.loads(row["replaced"])["content"] == "Nobody, I fear" and row["reasoning"] is None
    assert [json.loads(found[name]["completion"])["content"] for name in ("i2", "i3")] == ["Bert.", "Carla, at noon."]
    assert found["i2"]["replaced"] is found["i3"]["replaced"] is None


def test_a_day_is_stale_when_a_correction_comes_changes_or_goes(tables):
    rows = [interaction(1, "Go", "north"), interaction(2, "Go", "south", day=1)]
    settings = CurationSettings()
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), settings)
    for edits, said in (
        ([corrected("west")], "west"),
        ([corrected("east")], "east"),
        ([thumb(0, request_id="other")], "north"),
    ):
        store(tables, "feedback", edits)
        assert stale_days(tables, "tutor", settings) == days_of(rows)[:1]
        clean(tables, "tutor", days_of(rows)[:1], settings)
        assert stale_days(tables, "tutor", settings) == []
        found = {
            row["interaction_id"]: json.loads(row["completion"])["content"] for row in read(tables, "cleaned_interactions")
        }
        assert found == {"i1": said, "i2": "south"}
