"""The rules on single rows: what each takes, what it leaves alone, and what is on record about it."""

import json

import pyarrow as pa
import pytest
from interaction_rows import days_of, interaction, read, store, thumb

from resources.curating.cleaning import clean, cleaned_with, stale_days
from resources.curating.curation import CurationSettings
from resources.curating.quality import measures
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables

TEXT = "please explain how the garbage collector of this runtime finds cycles between objects"
TOOLS = json.dumps([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}])


@pytest.fixture
def judge(tmp_path):
    """Cleans rows and returns by id (rule, detail, cleaned row)."""

    def judged(rows, settings=None, feedback=()):
        tables = Tables(LakeLayout.open(tmp_path / "lake"))
        store(tables, "interactions", rows)
        if feedback:
            store(tables, "feedback", list(feedback))
        clean(tables, "tutor", days_of(rows), CurationSettings(**(settings or {})))
        facts = {row["interaction_id"]: row for row in read(tables, "cleaned_interactions")}
        decisions = {row["interaction_id"]: row for row in read(tables, "decisions")}
        assert len(facts) == len(decisions) == len(rows)
        return {name: (decisions[name]["rule"], decisions[name]["detail"], row) for name, row in facts.items()}

    return judged


def rules(found):
    return {name: rule for name, (rule, _, _) in found.items()}


def calling(arguments, name="look", call_id="c1"):
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def test_what_is_not_known_is_dropped_by_its_name(judge):
    parts, audio = [{"type": "hologram"}], {"role": "assistant", "content": None, "audio": {"id": "a"}}
    custom = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "remote", "remote": {}}]}
    answer = "It follows references and counts them."
    rows = [
        interaction(1, TEXT, answer, finish_reason="pause_turn"),
        interaction(2, TEXT, answer, finish_reason="END_TURN"),
        interaction(3, TEXT, answer, finish_reason=None),
        interaction(4, TEXT, {"role": "assistant", "content": parts}),
        interaction(5, TEXT, audio),
        interaction(6, TEXT, custom),
        interaction(7, TEXT, {"role": "assistant", "content": []}),
        interaction(8, TEXT, "<|channel|>analysis<|message|>hm"),
        interaction(9, TEXT, "I look.\n<|python_tag|>f"),
        interaction(10, TEXT, "```\n<|channel|>final\n``` is of gpt-oss."),
        interaction(11, TEXT, calling("{}")),
        interaction(13, TEXT, "<think>\nIt is asked, so"),
        interaction(14, TEXT, "<think> opens a thought in it."),
        interaction(12, TEXT, answer, params=json.dumps({"context": {"elsewhere": "cachedContent"}})),
    ]
    found = judge(rows)
    assert {name: (rule, detail) for name, (rule, detail, _) in found.items()} == {
        "i1": ("unfinished", "pause_turn"),
        "i2": ("kept", None),
        "i3": ("kept", None),
        "i4": ("unknown_content", "hologram"),
        "i5": ("unknown_content", "audio"),
        "i6": ("unknown_content", "remote"),
        "i7": ("empty", None),
        "i8": ("control_text", None),
        "i9": ("control_text", None),
        "i10": ("kept", None),
        "i11": ("kept", None),
        "i12": ("context_elsewhere", "cachedContent"),
        "i13": ("control_text", None),
        "i14": ("kept", None),
    }
    assert dict(found["i11"][2]["quality"])["calls_without_tools"] == 1
    loose = {
        "status": {"drop_truncated": False, "drop_empty": False, "drop_control_text": False, "drop_context_elsewhere": False}
    }
    assert {rules(judge(rows, loose))[name] for name in ("i1", "i8", "i12")} == {"kept"}


def test_calls_written_as_text_are_dropped_where_the_request_has_tools(judge):
    call = '{"name": "look", "arguments": {"at": 1}}'
    raw = [
        f"<tool_call>\n{call}\n</tool_call>",
        f"I look it up.\n<tool_call>\n{call}\n</tool_call>",
        '<function=look>{"at": 1}</function>',
        "<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        f"functools[{call}]",
        f"[{call}]",
        call,
        "<tool_call>\n<function=look>\n<parameter=at>\n1\n</parameter>\n</function>\n</tool_call>",
        '{"name": "look", "parameters": {"at": 1}}',
        '<minimax:tool_call>\n<invoke name="look">\n</invoke>',
        '<function_calls>\n<invoke name="look">',
        "```tool_code\nlook(at=1)\n```",
        '{"type": "function", "name": "look", "parameters": {"at": 1}}',
        "I look.\n```tool_code\nprint(look(at=1))\n```",
    ]
    talk = [
        "The tags <tool_call> and </tool_call> hold a call.",
        f"An example:\n```\n<tool_call>\n{call}\n</tool_call>\n```",
        "A `<function=look>` tag.",
        '{"name": "Ann", "parameters": {"at": 1}}',
        '{"name": "look", "age": 7}',
        "<function_calls> is a tag of older prompts.",
    ]
    rows = [interaction(at, TEXT, answer, tools=TOOLS) for at, answer in enumerate([*raw, *talk])]
    rows += [interaction(100 + at, TEXT, answer) for at, answer in enumerate(raw)]
    found = rules(judge(rows))
    assert [found[f"i{at}"] for at in range(len(rows))[: len(raw)]] == ["control_text"] * len(raw)
    assert {name: rule for name, rule in found.items() if int(name[1:]) >= len(raw) and rule != "kept"} == {}


def test_tool_calls_that_no_client_could_run_are_dropped(judge):
    result = {"role": "tool", "tool_call_id": "c1", "content": "found"}
    ask = {"role": "user", "content": TEXT}
    rows = [
        interaction(1, TEXT, calling('{"at": 1}'), tools=TOOLS),
        interaction(2, TEXT, calling('{"at": 1'), tools=TOOLS),
        interaction(3, TEXT, calling("{}", name="rm"), tools=TOOLS),
        interaction(4, TEXT, calling("{}", name="rm")),
        interaction(5, [ask, calling("{}"), result], "It is there, as it always was."),
        interaction(6, [ask, result], "It is there, as it always was."),
        interaction(7, [ask, calling("{}", call_id="other"), result], "It is there, as it always was."),
        interaction(8, TEXT, calling("[1]"), tools=TOOLS),
        interaction(9, [ask, {"role": "tool", "content": "found"}], "It is there, as it always was."),
    ]
    found = judge(rows)
    assert rules(found) == {
        "i1": "kept",
        "i2": "broken_tool_call",
        "i3": "broken_tool_call",
        "i4": "kept",
        "i5": "kept",
        "i6": "broken_tool_call",
        "i7": "broken_tool_call",
        "i8": "broken_tool_call",
        "i9": "broken_tool_call",
    }
    assert found["i2"][1] == "arguments of look are no JSON object" and found["i3"][1] == "rm is none of the request's tools"
    assert set(rules(judge(rows, {"tools": {"drop_broken": False}})).values()) == {"kept"}


def test_languages_are_told_and_dropped_only_where_some_are_allowed(judge):
    rows = [
        interaction(1, TEXT, "It marks everything that can be reached and sweeps the rest away."),
        interaction(2, TEXT, "Er markiert alles, was erreichbar ist, und räumt danach den Rest weg."),
        interaction(3, TEXT, "Il marque tout ce qui est accessible, puis il balaie tout le reste."),
        interaction(4, TEXT, "42"),
        interaction(5, TEXT, "```python\nimport gc\nprint(gc.collect())\n```"),
        interaction(6, TEXT, "こんにちは、今日はどのようなご用件でしょうか。"),
        interaction(7, TEXT, calling('{"where": "on the table behind the door"}')),
    ]
    found = judge(rows)
    assert {name: row["language"] for name, (_, _, row) in found.items()} == {
        "i1": "en",
        "i2": "de",
        "i3": "fr",
        "i4": None,
        "i5": None,
        "i6": "ja",
        "i7": None,
    }
    assert set(rules(found).values()) == {"kept"}
    assert dict(found["i2"][2]["quality"])["language_confidence"] > 0.9
    found = judge(rows, {"language": {"allow": ["en", "de"]}})
    assert {name for name, rule in rules(found).items() if rule == "language"} == {"i3", "i6"}
    assert found["i3"][1].startswith("fr, confidence ")
    with pytest.raises(ValueError, match="no detectable language"):
        CurationSettings(language={"allow": ["klingon"]})


def test_one_pattern_again_and_again_is_a_loop(judge):
    rows = [
        interaction(1, TEXT, "Sure. " + "over and over " * 32),
        interaction(2, TEXT, "Sure. " + "over and over " * 31),
        interaction(3, TEXT, "no " * 33),
        interaction(4, TEXT, "one two three four five six seven eight nine ten eleven twelve thirteen " * 32),
        interaction(5, TEXT, "哈" * 40),
    ]
    found = judge(rows)
    assert rules(found) == {
        "i1": "repeated_pattern",
        "i2": "kept",
        "i3": "repeated_pattern",
        "i4": "repeated_pattern",
        "i5": "repeated_pattern",
    }
    assert found["i1"][1] == "3 words 32 times in a row" and dict(found["i2"][2]["quality"])["repeats"] == 31
    assert rules(judge(rows, {"repetition": {"repeats": 64}}))["i1"] == "kept"
    off = {"repetition": {"drop_repeated_patterns": False, "drop_repetitive": False}}
    assert set(rules(judge(rows, off)).values()) == {"kept"}


def test_signs_without_words_go_round_in_circles_too(judge):
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
    loops = [
        "!" * 500,
        "a" * 500,
        "Sure: " + "ha" * 200,
        "Yes." + "\n" * 100,
        family * 32,
        "\U0001f389" * 40,
        "It is 0." + "3" * 90,
    ]
    fine = [
        "Title\n" + "=" * 70 + "\nand then a text that is longer than the line above it, as texts with a title are.",
        "!" * 31,
        "\U0001f389" * 31,
        "-" * 40 + "\n" + " | ".join("abcdefghijklmnopqrstuvwxyz"),
        "aaaaaaaaaaargh",
    ]
    found = judge([interaction(n, TEXT, answer) for n, answer in enumerate(loops + fine)])
    assert [found[f"i{n}"][0] for n in range(len(found))] == ["repeated_pattern"] * len(loops) + ["kept"] * len(fine)
    assert found["i0"][1] == "the same signs 500 times in a row" and dict(found["i4"][2]["quality"])["repeats"] == 32


def test_arrays_equal_lines_of_sql_and_logs_repeat_by_nature(judge):
    zeros = "[" + ", ".join(["0"] * 200) + "]"
    fine = [
        "Here is the array:\n```python\nbuffer = " + zeros + "\n```",
        f"The array is {zeros}.",
        zeros,
        f"static int a[200] = {{{zeros[1:-1]}}};",
        "\n".join(["INSERT INTO t (a, b) VALUES (0, NULL);"] * 60),
        "```sql\n" + "INSERT INTO t VALUES (1)\n" * 60 + "```",
        "\n".join(["2026-06-01 12:00:00 ERROR connection refused"] * 50),
        "\n".join(["[info] waits for the lock"] * 50),
        "| a | b |\n|---|---|\n" + "| 0 | 0 |\n" * 80,
        '{"weights": ' + zeros + "}",
        "<tr><td>0</td></tr>\n" * 60,
        "np.array([" + "[0, 0, 0, 0],\n" * 50 + "])",
        "10:00 free\n" * 40,
    ]
    loops = [
        "Let us see. " * 40,
        "0 " * 200,
        "I do not know.\n" * 50,
        "The answer is 7 (seven).\n" + "So it is, and so it is. " * 50,
        "```\nx = 1\n```\n" + "again and again " * 60,
        "```\n" + "x = x + 1\n" * 3_000 + "```",
        "[" + "0, " * 5_000 + "0]",
    ]
    found = rules(judge([interaction(n, TEXT, answer) for n, answer in enumerate(fine + loops)]))
    assert found == {f"i{n}": "kept" if n < len(fine) else "repeated_pattern" for n in range(len(fine + loops))}


PROSE = " ".join(f"word{n}" for n in range(400)) + "."
WAIT = "Wait, let me check again. "


def test_a_loop_is_judged_by_what_repeats_and_not_by_the_brackets_around_it(judge):
    zeros = "[" + ", ".join(["0"] * 200) + "]"
    loops = [
        "[1, 2, 3]\nI will check. " + WAIT * 80,
        '{"a": 1}\n' + WAIT * 80,
        "[1]\n" + "It goes on and on. " * 80,
        zeros + "\n" + WAIT * 80,
        f"```\n{zeros * 4}\n```\n" + WAIT * 40,
        '{"summary": "' + "the same thing again and " * 80 + '"}',
        '```json\n{"summary": "' + "the same thing again and " * 400 + '"}\n```',
        json.dumps({"tags": ["red"] * 200}),
        json.dumps([{"name": "Ann", "age": 7}] * 100),
        json.dumps({"items": [{"q": "What is it?", "a": "A thing."}] * 60}),
        "I love you,\n" * 200,
        "Yes (sure)\n" * 100,
        "<b>ok</b>\n" * 100,
        "See the handbook for that. [1]\n" * 100,
        "Step one is to wait;\n" * 100,
        "12:00 nothing happened here\n" * 200,
        "{" + "I do not know. " * 50 + "}",
        "no, " * 50,
        '"I do not know," he said. ' * 50,
        "2 + 2 = 4\n" * 60,
        "As it says [1]. " * 60,
        "12:00 12:00 " * 40,
    ]
    fine = [
        f"{PROSE}\n{zeros}\nThat is it.",
        "[[" + "]\n [".join([" ".join(["0."] * 10)] * 10) + "]]",
        json.dumps([[0] * 10] * 10),
        "\\\\\n".join([" & ".join(["0"] * 8)] * 8),
        json.dumps([False] * 100),
        json.dumps([{"alive": False}] * 80),
        "x = " + str([None] * 99),
        "<tr>" + "<td></td>" * 40 + "</tr>",
        "UPDATE stock SET n = n - 1 WHERE id = 7;\n" * 40,
        "    nop\n" * 100,
        "<path d='M0 0 " + "L1 1 " * 60 + "Z'/>",
        "       05 FILLER PIC X(10) VALUE SPACES.\n" * 40,
        "x = [" + "0.0, " * 300 + "]",
        *[
            "\n".join(line.replace("#", str(n)) for n in range(10, 130))
            for line in (
                "INSERT INTO t (a, b) VALUES (#, NULL);",
                "#,10.00,open",
                "#, 10.00, open, yes, none",
                "#;offen;ja;nein",
                "#\topen\tyes",
                "0000#  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00",
                "-A INPUT -s 10.0.0.# -p tcp --dport 22 -j ACCEPT",
                "10.0.0.# host# host#.local",
                "- name: a#\n  state: open",
                '{"id": #, "state": "open"}',
                "12:#:00 the worker is well",
                "| # | it is open |",
            )
        ],
        "\n".join(f"{name},red,open,no" for name in ["ann", "bob", "cid", "dan", "eve"] * 20),
    ]
    found = judge([interaction(n, TEXT, answer) for n, answer in enumerate(loops + fine)])
    assert {name: rule for name, (rule, _, _) in found.items()} == {
        f"i{n}": "repeated_pattern" if n < len(loops) else "kept" for n in range(len(loops + fine))
    }
    assert found["i3"][1] == "5 words 80 times in a row"


def test_no_share_is_above_one():
    shares = measures(pa.array(["so " * 31 + "it is " * 20 + "and so on"]), least_words=20).to_pylist()[0]
    assert 0 < shares["top_2gram"] < 1 and 0 < shares["top_4gram"] < 1


VILLANELLE = "\n".join(
    line
    for stanza in range(6)
    for line in (
        f"The evening number {stanza} falls upon the shore,",
        "And all the lamps are lit along the bay;",
        "We shall not see the ships come any more.",
        "",
    )
)
TABLE = "| city | people | river |\n|---|---|---|\n" + "\n".join(
    f"| town {n} | {n * 1000} people live there | the same river as before |" for n in range(120)
)
CODE = (
    "```python\n"
    + "\n".join(f"    self.assertEqual(double({n}), {2 * n})\n    self.assertTrue(is_even(double({n})))" for n in range(150))
    + "\n```"
)
LIST = "\n".join(
    f"{n}. Take the {word} out of its box, look at it closely and write its weight into the book."
    for n, word in enumerate(["lamp", "cup", "knife", "plate", "spoon", "fork", "glass", "bowl"], 1)
)
LOOP = "\n\n".join(["I think that we should first look at the problem again, from the beginning, with fresh eyes."] * 30)


def test_answers_that_go_round_in_circles_leave_and_what_repeats_by_nature_stays(judge):
    rows = [
        interaction(number, TEXT, text)
        for number, text in enumerate(
            [
                VILLANELLE,
                TABLE,
                CODE,
                CODE.strip("`python"),
                LIST,
                json.dumps([{"name": "a", "size": n} for n in range(150)]),
                LOOP,
            ]
        )
    ]
    found = judge(rows)
    assert rules(found) == {f"i{n}": "kept" for n in range(6)} | {"i6": "repetitive"}
    quality = dict(found["i6"][2]["quality"])
    assert quality["duplicate_lines"] == pytest.approx(29 / 30) and quality["duplicate_10grams"] > 0.9
    assert found["i6"][1] == "duplicate_lines 0.97, at most 0.50"
    assert "duplicate_lines" not in dict(found["i1"][2]["quality"])
    assert dict(found["i2"][2]["quality"])["code_share"] > 0.9


MIXED = "".join(chr(97 + n * n * n % 26) for n in range(26)) + "".join(chr(97 + n * 7 % 25) for n in range(80))


def test_lengths(judge):
    rows = [
        interaction(1, MIXED[:100], MIXED[:10]),
        interaction(2, MIXED[:10], MIXED[:100]),
        interaction(3, MIXED[:50], MIXED[:50]),
    ]
    assert set(rules(judge(rows, {"repetition": {"drop_repetitive": False}})).values()) == {"kept"}
    assert rules(judge(rows, {"length": {"min_prompt": 20, "min_answer": 20}})) == {
        "i1": "answer_too_short",
        "i2": "prompt_too_short",
        "i3": "kept",
    }
    found = judge(rows, {"length": {"min_answer": 20}})
    assert found["i1"][1] == "10" and dict(found["i1"][2]["quality"])["answer_to_prompt"] == pytest.approx(0.1)
    with pytest.raises(ValueError, match="no row could pass"):
        CurationSettings(length={"min_answer": 10, "max_answer": 5})


def test_refusals_in_words_only_where_asked_for(judge):
    rows = [
        interaction(1, TEXT, "I'm sorry, but I can't help with that."),
        interaction(2, TEXT, "Sorry, I cannot assist with that request."),
        interaction(3, TEXT, "I can't help but admire how it marks and sweeps."),
        interaction(4, TEXT, "Sorry to hear that! Restart the collector."),
        interaction(5, TEXT, "I\u2019m unable to provide legal advice."),
    ]
    assert set(rules(judge(rows)).values()) == {"kept"}
    found = rules(judge(rows, {"status": {"drop_refused_in_words": True}}))
    assert {name for name, rule in found.items() if rule == "refused_in_words"} == {"i1", "i2", "i5"}


def test_what_people_liked_passes_the_rules_of_taste_where_the_recipe_says_so(judge, tmp_path):
    rows = [interaction(1, TEXT, "no " * 40), interaction(2, TEXT, "no " * 40), interaction(3, TEXT, calling("{"), tools=TOOLS)]
    thumbs = [thumb(1, interaction_id="i1"), thumb(1, interaction_id="i3")]
    assert rules(judge(rows, feedback=thumbs))["i1"] == "repeated_pattern"
    liked = {"feedback": {"keep_thumbs_up": True}}
    assert rules(judge(rows, liked, thumbs)) == {"i1": "kept", "i2": "repeated_pattern", "i3": "broken_tool_call"}
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    assert stale_days(tables, "tutor", CurationSettings(**liked)) == []
    store(tables, "feedback", [*thumbs, thumb(1, interaction_id="i2")])
    assert stale_days(tables, "tutor", CurationSettings(**liked)) == days_of(rows)


def test_another_threshold_makes_days_stale_and_another_stage_does_not(judge, tmp_path):
    rows = [interaction(1, TEXT, "no " * 40)]
    judge(rows)
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    assert stale_days(tables, "tutor", CurationSettings()) == []
    assert stale_days(tables, "tutor", CurationSettings(decontamination={"threshold": 0.9})) == []
    assert stale_days(tables, "tutor", CurationSettings(near_duplicates={"similarity": 0.9})) == []
    for other in ({"repetition": {"repeats": 64}}, {"pii": "keep"}, {"near_duplicates": {"bands": 30}}):
        assert stale_days(tables, "tutor", CurationSettings(**other)) == days_of(rows)
    assert read(tables, "cleaned_interactions")[0]["cleaned_with"] == cleaned_with(CurationSettings())


def test_another_presidio_model_makes_days_stale(monkeypatch):
    by_presidio, by_ours = CurationSettings(pii_engine="presidio"), CurationSettings()
    monkeypatch.delenv("MILLRACE_PRESIDIO_MODEL", raising=False)
    before = [cleaned_with(by_presidio), cleaned_with(by_ours)]
    monkeypatch.setenv("MILLRACE_PRESIDIO_MODEL", "en_core_web_lg")
    assert [cleaned_with(by_presidio), cleaned_with(by_ours)] == before
    monkeypatch.setenv("MILLRACE_PRESIDIO_MODEL", "en_core_web_sm")
    assert cleaned_with(by_presidio) != before[0] and cleaned_with(by_ours) == before[1]


def test_the_first_rule_broken_is_the_verdict(judge):
    found = judge([interaction(1, TEXT, "no " * 40, finish_reason="length")], {"length": {"max_answer": 5}})
    assert rules(found) == {"i1": "truncated"}


def test_a_day_in_parts_is_the_day_whole(tmp_path, monkeypatch):
    import resources.curating.cleaning

    rows = [
        interaction(n, f"{TEXT} {n} ann{n}@example.org", f"answer {n}", session_id=f"s{n % 9}", minutes=n) for n in range(60)
    ]
    found = {}
    for name, size in (("whole", 1 << 30), ("parts", 2_000)):
        monkeypatch.setattr(resources.curating.cleaning, "BYTES_AT_A_TIME", size)
        tables = Tables(LakeLayout.open(tmp_path / name))
        store(tables, "interactions", rows)
        report = clean(tables, "tutor", days_of(rows), CurationSettings())
        assert report.read == report.rows == 60 and report.days[days_of(rows)[0]]["rows"] == 60
        assert len(read(tables, "decisions")) == 60 and tables.open("cleaned_interactions").version() == 0
        found[name] = sorted(read(tables, "cleaned_interactions"), key=lambda row: row["interaction_id"])
    assert found["whole"] == found["parts"]


RULES = CurationSettings()


def turn(number, question, answer, *, previous=None, instructions=None, **changes):
    context = {"previous_response_id": previous} if previous else {}
    context |= {"has_instructions": True} if instructions else {}
    messages = [{"role": "system", "content": instructions}] if instructions else []
    return interaction(
        number,
        [*messages, {"role": "user", "content": question}],
        answer,
        session_id=None,
        params=json.dumps({"context": context} if context else {}),
        **changes,
    )


def cleaned(tables):
    decided = {row["interaction_id"]: (row["rule"], row["detail"]) for row in read(tables, "decisions")}
    return {row["interaction_id"]: (row, *decided[row["interaction_id"]]) for row in read(tables, "cleaned_interactions")}


def test_a_row_begins_with_the_turns_before_it_and_not_with_their_instructions(tables):
    rows = [
        turn(3, "And why?", "Because it is.", previous="r2"),
        turn(1, "Is it so?", "It is so.", instructions="Old."),
        turn(2, "Really?", "Really it is.", previous="r1", instructions="Be brief.", day=1),
        turn(4, "Other", "Thing"),
    ]
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), RULES)
    found = cleaned(tables)
    said = {name: [message["content"] for message in json.loads(row["messages"])] for name, (row, *_) in found.items()}
    assert said == {
        "i1": ["Old.", "Is it so?"],
        "i4": ["Other"],
        "i2": ["Be brief.", "Is it so?", "It is so.", "Really?"],
        "i3": ["Is it so?", "It is so.", "Really?", "Really it is.", "And why?"],
    }
    assert {rule for _, rule, _ in found.values()} == {"kept"} and dict(found["i3"][0]["quality"])["earlier_turns"] == 4


@pytest.mark.parametrize("broken", [
    {"request_id": "other"}, {"status": "failure", "error": "boom"}, {"params": '{"context": {"elsewhere": "prompt"}}'},
    {"source": "x"}, {"params": '{"context": {"previous_response_id": "r1"}}'},
])  # fmt: skip
def test_a_row_whose_earlier_response_is_not_there_whole_is_dropped_by_name(tables, broken):
    rows = [turn(1, "Is it so?", "It is so.") | broken, turn(2, "Really?", "Really it is.", previous="r1")]
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), RULES)
    assert cleaned(tables)["i2"][1:] == ("context_elsewhere", "previous_response_id")


def test_a_day_is_cleaned_again_when_the_earlier_response_arrives_on_another_one(tables):
    late, early = turn(2, "Really?", "Really it is.", previous="r1", day=1), turn(1, "Is it so?", "It is so.")
    store(tables, "interactions", [late])
    clean(tables, "tutor", stale_days(tables, "tutor", RULES), RULES)
    assert cleaned(tables)["i2"][1] == "context_elsewhere" and not stale_days(tables, "tutor", RULES)
    store(tables, "interactions", [early])
    assert stale_days(tables, "tutor", RULES) == days_of([early, late])
    clean(tables, "tutor", days_of([early, late]), RULES)
    assert cleaned(tables)["i2"][1] == "kept" and not stale_days(tables, "tutor", RULES)
