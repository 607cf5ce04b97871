"""Evaluation items in traffic: real suites planted every way they leak, ordinary traffic left alone, days searched once."""

import gzip
import json
import random
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from interaction_rows import START, days_of, heard, interaction, read, store, thumb

from resources.curating import decontamination
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings, FeedbackRules
from resources.curating.decontamination import EVAL_ITEMS
from resources.curating.row_feedback import FeedbackScale, feedback_notes, feedback_scales, guessed_bound
from resources.curating.row_feedback import _names_of as names_of
from resources.curating.selection import curate

SETTINGS = CurationSettings()


def suite_file(path, items):
    rows = [dict(zip(EVAL_ITEMS.names, item, strict=True)) for item in items]
    pq.write_table(pa.Table.from_pylist(rows, schema=EVAL_ITEMS), path)
    return path


def cleaned(tables, rows):
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), SETTINGS)


def found(tables, output, items):
    """Ids of the rows that hold items, and the report by suite."""
    report = curate(tables, "tutor", output, SETTINGS, items)
    decisions = [row for row in read(tables, "decisions") if row["version"] == output.name]
    return {row["interaction_id"] for row in decisions if row["rule"] == "contaminated"}, report.suites


def real_suites(shared):
    data = shared / "data"
    with gzip.open(data / "HumanEval.jsonl.gz", "rt") as file:
        items = [("humaneval", item["task_id"], item["prompt"], item["canonical_solution"]) for item in map(json.loads, file)]
    for line in (data / "spec_bench_question.jsonl").read_text().splitlines():
        item = json.loads(line)
        items.append(("spec_bench", str(item["question_id"]), "\n".join(item["turns"]), None))
    for number, line in enumerate((data / "gsm8k_test.jsonl").read_text().splitlines()):
        item = json.loads(line)
        items.append(("gsm8k", str(number), item["question"], item["answer"]))
    return items


def respaced(text, rng):
    return "".join(rng.choice([" ", "  ", "\n", " \t"]) if letter == " " else letter for letter in text)


WAYS = {
    "verbatim": lambda text, rng: (text, "Let me see."),
    "re-cased": lambda text, rng: (text.upper(), "Let me see."),
    "re-spaced": lambda text, rng: (respaced(text, rng), "Let me see."),
    "embedded": lambda text, rng: (
        f"My colleague asked me this the other day: {text} What do you make of that, honestly?",
        "Well.",
    ),
    "in an answer": lambda text, rng: (
        "Give me an exercise for tomorrow's class.",
        f"Here is one you may like.\n{text}\nGood luck!",
    ),
    "in the history": lambda text, rng: (
        [
            {"role": "user", "content": text},
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": "Thanks, bye."},
        ],
        "See you.",
    ),
    "as parts": lambda text, rng: ([{"role": "user", "content": [{"type": "text", "text": text}]}], "Let me see."),
    "in a tool call": lambda text, rng: (
        "Save it.",
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "save", "arguments": json.dumps({"text": text})}}
            ],
        },
    ),
    "in JSON": lambda text, rng: (json.dumps({"q": text}), "Let me see."),
    "in JSON, deep and indented": lambda text, rng: (
        json.dumps([{"tasks": [{"id": 1, "body": text}]}], indent=1),
        "Let me see.",
    ),
    "in JSON after a sentence": lambda text, rng: (f"Rate this record: {json.dumps({'q': text})}", "Let me see."),
    "in JSON cut short": lambda text, rng: ("Go on.", json.dumps({"q": text, "then": "nothing"})[:-9]),
}


def test_real_items_are_caught_however_they_were_planted(tables, tmp_path, shared):
    items = real_suites(shared)
    rng = random.Random(1)
    rows, planted = [], {}
    for suite in ("humaneval", "spec_bench", "gsm8k"):
        for number, item in enumerate(rng.sample([item for item in items if item[0] == suite], 40)):
            way = list(WAYS)[number % len(WAYS)]
            prompt, answer = WAYS[way](item[2], rng)
            name = f"i{len(rows)}"
            rows.append(interaction(len(rows), prompt, answer))
            planted[name] = (suite, item[1], way)
    cleaned(tables, rows)
    caught, suites = found(tables, tmp_path / "v1", suite_file(tmp_path / "items.parquet", items))
    missed = [planted[name] for name in planted if name not in caught]
    assert not missed
    assert all(suites[suite]["items_found"] >= 40 for suite in ("humaneval", "spec_bench", "gsm8k"))


def test_ordinary_traffic_is_not_condemned(tables, tmp_path, shared):
    """GSM8K's training questions against its test, and people's chat against all suites: at most one in a hundred."""
    data = shared / "data"
    train = [json.loads(line) for line in (data / "gsm8k_train.jsonl").read_text().splitlines()][:3_000]
    rows = [interaction(f"train{number}", item["question"], item["answer"]) for number, item in enumerate(train)]
    waiting = [json.loads(line)["prompt"] for line in (data / "oasst_en_100_tree.jsonl").read_text().splitlines()]
    chat = 0
    while waiting:
        message = waiting.pop()
        for reply in message.get("replies", ()):
            rows.append(interaction(f"chat{chat}", message["text"], reply["text"]))
            chat += 1
            waiting.append(reply)
    cleaned(tables, rows)
    caught, _ = found(tables, tmp_path / "v1", suite_file(tmp_path / "items.parquet", real_suites(shared)))
    by_kind = {kind: sum(name.startswith(f"i{kind}") for name in caught) for kind in ("train", "chat")}
    print(f"condemned: {by_kind['train']} of {len(train)} training questions, {by_kind['chat']} of {chat} chat turns")
    assert by_kind["train"] <= len(train) / 100 and by_kind["chat"] <= chat / 100


QUESTION = "How many loaves does the baker sell on a market day when each cart brings forty sacks of flour to the mill"


def test_a_day_is_searched_once_and_again_only_when_it_changed(tables, tmp_path, monkeypatch):
    items = suite_file(tmp_path / "items.parquet", [("quiz", "1", QUESTION, None)])
    cleaned(
        tables,
        [
            interaction(1, QUESTION, "About nine hundred."),
            interaction(2, "Good morning, miller, how are you?", "Fine, thank you."),
            interaction(3, "What is a mill for?", "For grinding grain.", day=1),
            interaction(4, QUESTION, "Many of them.", day=2),
        ],
    )
    searched = []
    search = decontamination.find_items

    def watched(connection, settings):
        searched.append({day.day for (day,) in connection.execute("select dt from days_to_search").fetchall()})
        search(connection, settings)

    monkeypatch.setattr(decontamination, "find_items", watched)
    assert found(tables, tmp_path / "v1", items)[0] == {"i1", "i4"}
    assert found(tables, tmp_path / "v2", items)[0] == {"i1", "i4"}
    assert searched == [{1, 2, 3}]
    cleaned(tables, [interaction(5, "Hello again, dear miller", QUESTION, day=1)])
    assert found(tables, tmp_path / "v3", items)[0] == {"i1", "i4", "i5"}
    assert searched[1:] == [{2}]
    cleaned(tables, [interaction(4, "What else is new in the village?", "Nothing at all.", day=2)])
    assert found(tables, tmp_path / "v4", items)[0] == {"i1", "i5"}
    assert searched[2:] == [{3}]


def test_other_suites_or_settings_search_again(tables, tmp_path):
    cleaned(tables, [interaction(1, QUESTION, "About nine hundred."), interaction(2, "who owns the old mill here", "He does.")])
    one = suite_file(tmp_path / "one.parquet", [("quiz", "1", QUESTION, None)])
    two = suite_file(tmp_path / "two.parquet", [("quiz", "1", QUESTION, None), ("more", "7", "Who owns the old mill?", None)])
    none = suite_file(tmp_path / "none.parquet", [("quiz", "9", "Something that nobody ever said to anyone at all", None)])
    assert found(tables, tmp_path / "v1", one)[0] == {"i1"}
    assert found(tables, tmp_path / "v2", two) == (
        {"i1", "i2"},
        {
            "quiz": {"items": 1, "items_found": 1, "rows_holding_items": 1},
            "more": {"items": 1, "items_found": 1, "rows_holding_items": 1},
        },
    )
    assert found(tables, tmp_path / "v3", none)[0] == set()
    assert found(tables, tmp_path / "v4", one)[0] == {"i1"}
    strict = CurationSettings(decontamination={"threshold": 1.0})
    assert curate(tables, "tutor", tmp_path / "v5", strict, one).suites["quiz"]["items_found"] == 1
    off = CurationSettings(decontamination={"enabled": False})
    assert curate(tables, "tutor", tmp_path / "v6", off, one).rows == 2


def test_json_in_a_message_is_read_with_its_escapes_undone(tables, tmp_path):
    word = "un café à côté"
    item = f'Où se trouve\n{word}\tde la gare\nqui vend \\frac et "noir" même le\ndimanche soir'
    cleaned(
        tables,
        [
            interaction(1, json.dumps({"q": item}), "Là-bas."),
            interaction(2, "Où?", json.dumps([[item]], ensure_ascii=False)),
            interaction(3, json.dumps({"q": "Où\nse\ntrouve\nla\nmairie\nde la\nville"}), "Là-bas."),
            interaction(
                4, [{"role": "system", "content": json.dumps({"q": item})}, {"role": "user", "content": "Hello"}], "Yes?"
            ),
        ],
    )
    items = suite_file(tmp_path / "items.parquet", [("quiz", "1", item, None)])
    assert found(tables, tmp_path / "v1", items)[0] == {"i1", "i2"}


def test_what_an_older_search_found_is_not_kept(tables, tmp_path, monkeypatch):
    items = suite_file(tmp_path / "items.parquet", [("quiz", "1", QUESTION, None)])
    cleaned(tables, [interaction(1, json.dumps({"q": QUESTION.replace(" ", "\n")}), "About nine hundred.")])
    with monkeypatch.context() as before:
        before.setattr(decontamination, "_VERSION", 1)
        before.setattr(
            decontamination, "stream", lambda connection, _: connection.sql("select '' as row_id, '' as text").to_arrow_reader()
        )
        assert found(tables, tmp_path / "v1", items)[0] == set()
    assert found(tables, tmp_path / "v2", items)[0] == {"i1"}


def test_words_do_not_run_from_one_message_into_the_next(tables, tmp_path):
    words = QUESTION.split()
    cleaned(tables, [interaction(1, " ".join(words[:5]), " ".join(words[5:10])), interaction(2, " ".join(words[:12]), "Yes.")])
    items = suite_file(tmp_path / "items.parquet", [("quiz", "1", " ".join(words[:10]), None)])
    assert found(tables, tmp_path / "v1", items)[0] == {"i2"}


def test_a_message_full_of_items_is_read_whole(tables, tmp_path):
    """More finds in one batch than the first buffer has room for."""
    items = suite_file(tmp_path / "items.parquet", [("quiz", "1", QUESTION, None)])
    cleaned(tables, [interaction(1, f"{QUESTION}. " * 600, "Yes."), interaction(2, "Nothing here", QUESTION)])
    assert found(tables, tmp_path / "v1", items)[0] == {"i1", "i2"}


def given(tables, *votes, rules=None):
    """The value of each row, for (name, value, label) or (name, value) about rows 1, 2, ..."""
    store(tables, "interactions", [interaction(n, f"question {n}", "a") for n in range(1, len(votes) + 1)])
    rows = [
        thumb(0, interaction_id=f"i{n}", name=vote[0], label=vote[2] if vote[2:] else None) | {"value": vote[1]}
        for n, vote in enumerate(votes, 1)
    ]
    store(tables, "feedback", rows)
    values = heard(tables, "tutor", rules or FeedbackRules())
    return [values.get(f"i{n}") for n in range(1, len(votes) + 1)]


@pytest.mark.parametrize(("votes", "values"), [
    ([("user_score", 0), ("user_score", 1)], [-1, 1]),
    ([("user_score", 0), ("user_score", 1), ("user_score", -1)], [0, 1, -1]),
    ([("user_score", 0), ("user_score", 1), ("user_score", 0.3)], [0, 1, 0.3]),
    # words are no numbers of a scale
    ([("thumbs", 0), ("thumbs", 1), ("thumbs", -1, "down")], [-1, 1, -1]),
    ([("negative_feedback", 1, "true"), ("negative_feedback", -1, "False")], [-1, 1]),
    ([("hallucination", 1), ("hallucination", 0)], [-1, 1]),
    ([("hallucination", 0.83), ("hallucination", 0.1), ("hallucination", 1)], [None, None, None]),
    ([("hallucination", 1, "hallucinated"), ("hallucination", 1, "factual")], [-1, 1]),
    ([("disliked", -1, "down"), ("disliked", 1, "Thumbs up")], [-1, 1]),
    ([("toxicity_check", 1, "true"), ("latency", 3.5), ("toxicity_check", 1, "pass")], [None, None, 1]),
    ([("label of a", 0), ("label of a", 1), ("label of toxic", 0), ("label of toxic", 4)], [-1, 1, None, None]),
    ([("quality", None, "excellent"), ("quality", None, "Poor"), ("toxicity", None, "severe")], [1, -1, -1]),
    ([("stars", 5, "good"), ("stars", 2, "bad")], [5, -1]),
    ([("hallucination", 0.83, "yes"), ("hallucination", 0.1, "false"), ("hallucination", 0.2)], [-1, 1, None]),
    ([("thumbs", 1, "up"), ("thumbs", 0, "neutral"), ("thumbs", 0)], [1, None, -1]),
])  # fmt: skip
def test_names_numbers_and_words_say_what_is_good(tables, votes, values):
    assert given(tables, *votes) == values


def test_the_rules_go_before_the_name(tables):
    rules = FeedbackRules(least={"hallucination": 1}, most={"toxicity": 0.5})
    assert feedback_scales(tables, "tutor", rules) == {}
    votes = [("hallucination", 1), ("hallucination", 0), ("toxicity", 0.5), ("toxicity", 0.9)]
    assert given(tables, *votes, rules=rules) == [1, -1, 1, pytest.approx(-0.4)]
    assert feedback_scales(tables, "tutor", rules)["toxicity"] == FeedbackScale(-1, None, 0.5)
    assert list(feedback_notes(tables, "tutor", rules)) == []
    with pytest.raises(ValueError, match="stars is in least and in most"):
        FeedbackRules(least={"stars": 4}, most={"stars": 2})


def test_a_word_beside_a_number_of_a_scale_decides_only_where_the_number_is_none_of_it(tables):
    votes = [("thumbs", 5), ("thumbs", 1, "true")]
    assert given(tables, *votes, rules=FeedbackRules(least={"thumbs": 4})) == [5, 1]


def test_no_bound_is_guessed_for_numbers_of_both_signs(tables):
    given(tables, ("user_score", -2), ("user_score", 0), ("user_score", 5))
    assert [guessed_bound(each) for each in names_of(tables, "tutor")] == [None]


def test_a_vote_on_an_answer_of_another_workload_counts_for_nothing(tables):
    store(tables, "interactions", [interaction(1, "q", "a", session_id="s1")])
    store(tables, "feedback", [thumb(-1, session_id="s1", tie="elsewhere")])
    assert heard(tables, "tutor").get("i1") is None


def test_what_a_name_decides_is_said_with_the_rule_that_says_otherwise(tables):
    given(tables, ("hallucination", 0), ("toxicity", 0.2), ("toxicity", 0.9), ("latency", 40), ("user_score", 0))
    assert list(feedback_notes(tables, "tutor", FeedbackRules(least={}))) == [
        "feedback toxicity (0.2 to 0.9): by the name less is better, so the numbers count for nothing; give the recipe the "
        "highest good ones, such as `curation: {feedback: {most: {toxicity: 0.5}}}`",
        "feedback user_score: its numbers are 0 and 1 alone, so 0 is a thumb down; `curation: {feedback: {least: {NAME: 0}}}` says that "
        "it is none",
        "feedback hallucination: by the name true and 1 are bad; `curation: {feedback: {least: {NAME: 1}}}` says that they are good",
        "feedback latency (40 to 40): the name does not say which end is good, so it counts for nothing; `least` or `most` in "
        "`curation: {feedback: ...}` says it",
    ]


@pytest.mark.parametrize(("votes", "value"), [
    ([(1, None, 0), (None, "none", 1)], None),
    ([(-1, "down", 0), (None, "Undo", 1)], None),
    ([(-1, "down", 0), (None, "removed", 1), (1, "up", 2)], 1),
    ([(None, "removed", 0), (-1, "down", 1)], -1),
    ([(-1, "down", 0), (None, "rude tone", 1)], -1),
    # of one time, the last line counts
    ([(-1, "down", 0), (1, "up", 0)], 1),
    ([(1, "up", 0), (None, "none", 0)], None),
])  # fmt: skip
def test_the_last_vote_counts_and_may_be_taken_back(tables, votes, value):
    store(tables, "interactions", [interaction(1, "q", "a")])
    rows = [
        thumb(0, interaction_id="i1", label=label, source_uri="f.jsonl", source_row=row)
        | {"value": number, "ts": START + timedelta(minutes=minutes)}
        for row, (number, label, minutes) in enumerate(votes)
    ]
    store(tables, "feedback", rows)
    assert heard(tables, "tutor").get("i1") == value


def test_what_the_run_does_not_understand_is_said_once_for_each_name(tables):
    votes = [
        ("politeness", 1, "true"),
        ("politeness", -1, "false"),
        ("verdict", None, "so so"),
        ("tone", 1, "up"),
        ("user_score", 1),
    ]
    given(tables, *votes)
    assert list(feedback_notes(tables, "tutor", FeedbackRules())) == [
        "feedback politeness: no word of the name tells which end is good, so true, 1 and more are taken as good; `most` in "
        "`curation: {feedback: {most: {NAME: 0}}}` says that they are bad",
        "feedback verdict: has words that are not understood and count for nothing",
    ]


@pytest.mark.parametrize(
    ("name", "voter", "minutes", "value"),
    [("feedback", "ana", 1, None), ("feedback", "ben", 1, -1), ("other", "ana", 1, -1), ("feedback", "ana", -1, -1)],
)
def test_an_empty_cell_takes_the_thumb_of_its_person_back(tables, name, voter, minutes, value):
    store(tables, "interactions", [interaction(1, "q", "a")])
    votes = [("thumbs", -1, "down", "ana", 0), (name, None, "none", voter, minutes)]
    rows = [
        thumb(0, interaction_id="i1", name=name, label=label, source_row=row)
        | {"value": number, "voter_hash": who, "ts": START + timedelta(minutes=after)}
        for row, (name, number, label, who, after) in enumerate(votes)
    ]
    store(tables, "feedback", rows)
    assert heard(tables, "tutor").get("i1") == value


@pytest.mark.parametrize(("second", "value"), [("ben", -1), ("ana", 1)])
def test_one_persons_complaint_is_not_taken_back_by_another_one(tables, second, value):
    store(tables, "interactions", [interaction(1, "q", "a")])
    votes = [(-1, "ana", 0), (1, second, 1)]
    rows = [
        thumb(number, interaction_id="i1", source_row=row) | {"voter_hash": voter, "ts": START + timedelta(minutes=minutes)}
        for row, (number, voter, minutes) in enumerate(votes)
    ]
    store(tables, "feedback", rows)
    assert heard(tables, "tutor").get("i1") == value
