"""Evaluation items in traffic: real suites planted every way they leak, ordinary traffic left alone, days searched once."""

import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from interaction_rows import days_of, interaction, read, store

from resources.curating import decontamination
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.decontamination import EVAL_ITEMS
from resources.curating.selection import curate
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables

SETTINGS = CurationSettings()


@pytest.fixture
def tables(tmp_path):
    return Tables(LakeLayout.open(tmp_path / "lake"))


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
    "embedded": lambda text, rng: (f"My colleague asked me this the other day: {text} What do you make of that, honestly?", "Well."),
    "in an answer": lambda text, rng: ("Give me an exercise for tomorrow's class.", f"Here is one you may like.\n{text}\nGood luck!"),
    "in the history": lambda text, rng: (
        [{"role": "user", "content": text}, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks, bye."}],
        "See you.",
    ),
    "as parts": lambda text, rng: ([{"role": "user", "content": [{"type": "text", "text": text}]}], "Let me see."),
    "in a tool call": lambda text, rng: (
        "Save it.",
        {
            "role": "assistant", "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "save", "arguments": json.dumps({"text": text})}}],
        },
    ),
    "in JSON": lambda text, rng: (json.dumps({"q": text}), "Let me see."),
    "in JSON, deep and indented": lambda text, rng: (json.dumps([{"tasks": [{"id": 1, "body": text}]}], indent=1), "Let me see."),
    "in JSON after a sentence": lambda text, rng: (f"Rate this record: {json.dumps({'q': text})}", "Let me see."),
    "in JSON cut short": lambda text, rng: ("Go on.", json.dumps({"q": text, "then": "nothing"})[:-9]),
}  # fmt: skip


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
    cleaned(tables, [
        interaction(1, QUESTION, "About nine hundred."),
        interaction(2, "Good morning, miller, how are you?", "Fine, thank you."),
        interaction(3, "What is a mill for?", "For grinding grain.", day=1),
        interaction(4, QUESTION, "Many of them.", day=2),
    ])  # fmt: skip
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
        {"quiz": {"items": 1, "items_found": 1, "rows_holding_items": 1}, "more": {"items": 1, "items_found": 1, "rows_holding_items": 1}},
    )  # fmt: skip
    assert found(tables, tmp_path / "v3", none)[0] == set()
    assert found(tables, tmp_path / "v4", one)[0] == {"i1"}
    strict = CurationSettings(decontamination={"threshold": 1.0})
    assert curate(tables, "tutor", tmp_path / "v5", strict, one).suites["quiz"]["items_found"] == 1
    off = CurationSettings(decontamination={"enabled": False})
    assert curate(tables, "tutor", tmp_path / "v6", off, one).rows == 2


def test_json_in_a_message_is_read_with_its_escapes_undone(tables, tmp_path):
    word = "un café à côté"
    item = f'Où se trouve\n{word}\tde la gare\nqui vend \\frac et "noir" même le\ndimanche soir'
    cleaned(tables, [
        interaction(1, json.dumps({"q": item}), "Là-bas."),
        interaction(2, "Où?", json.dumps([[item]], ensure_ascii=False)),
        interaction(3, json.dumps({"q": "Où\nse\ntrouve\nla\nmairie\nde la\nville"}), "Là-bas."),
        interaction(4, [{"role": "system", "content": json.dumps({"q": item})}, {"role": "user", "content": "Hello"}], "Yes?"),
    ])  # fmt: skip
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
