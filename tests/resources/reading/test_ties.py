"""Feedback and its interaction: tied by the most telling id, whichever was read first; what is not tied says why."""

import json
from collections import Counter
from datetime import date
from itertools import permutations

import pyarrow as pa
import pytest
from interaction_rows import heard, interaction, read, store, thumb

from resources.digests.slices import slice_digest
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.reading.ingestion import ingest
from resources.reading.ties import tie
from resources.sources.sources import SourceSettings


def ties(tables):
    return {row["comment"]: (row["interaction_id"], row["tie"]) for row in read(tables, "feedback")}


def test_each_kind_of_id_ties_and_what_is_not_one_interaction_says_why(tables):
    store(
        tables,
        "interactions",
        [
            interaction(1, "a", "b", alias_id="gw1", trace_id="t1"),
            interaction(2, "a", "b", trace_id="t2", session_id="s1"),
            interaction(3, "a", "b", trace_id="t2", alias_id="r1"),
            interaction(4, "a", "b", day=1, choice_index=1, request_id="r2"),
        ],
    )
    elsewhere = interaction(9, "a", "b", workload="other", request_id="r9")
    tables.append("interactions", pa.Table.from_pylist([elsewhere], schema=SCHEMAS["interactions"]))
    about = [
        {"interaction_id": "i1"},
        {"request_id": "r1"},
        {"request_id": "gw1"},
        {"trace_id": "t1"},
        {"session_id": "s3"},
        {"request_id": "r2"},
        {"trace_id": "t2"},
        {"session_id": "s1"},
        {"request_id": "nobody"},
        {"request_id": "r9"},
        {"interaction_id": "gone", "request_id": "r1"},
        {"request_id": "nobody", "session_id": "s3"},
    ]
    store(tables, "feedback", [thumb(1, comment=str(place), **ids) for place, ids in enumerate(about)])
    before = slice_digest(tables, "feedback", "tutor")
    found = tie(tables, {"tutor"})
    assert list(ties(tables).values()) == [
        ("i1", "interaction"),
        ("i1", "request"),
        ("i1", "gateway"),
        ("i1", "trace"),
        ("i3", "session"),
        (None, "several"),
        (None, "several"),
        (None, "several"),
        (None, "unknown"),
        (None, "elsewhere"),
        (None, "unknown"),
        (None, "unknown"),
    ]
    assert found.days["tutor"] == {date(2026, 6, 1): Counter(tie for _, tie in ties(tables).values())}
    assert found.changed == {"tutor": [date(2026, 6, 1)]} and tie(tables, {"tutor"}).changed == {}
    assert slice_digest(tables, "feedback", "tutor") == before  # curation hears what it heard: nothing is made again


def test_a_tie_changes_nothing_of_what_curation_hears(tables):
    store(tables, "interactions", [interaction(1, "a", "b", session_id="s")])
    store(tables, "feedback", [thumb(1, request_id="r1"), thumb(-1, session_id="s")])
    before = heard(tables, "tutor")
    tie(tables, {"tutor"})
    assert [row["interaction_id"] for row in read(tables, "feedback")] == ["i1", "i1"]
    assert heard(tables, "tutor") == before == {"i1": 1.0}


def test_another_interaction_of_the_id_unties_and_one_that_goes_ties_again(tables):
    store(tables, "feedback", [thumb(1, trace_id="t", comment="x")])
    seen = []
    for number in (0, 1, 2, 1):
        store(
            tables, "interactions", [interaction(each, "a", "b", trace_id="t" if each < number else "u") for each in range(2)]
        )
        tie(tables, {"tutor"})
        seen.append(ties(tables)["x"])
    assert seen == [(None, "unknown"), ("i0", "trace"), (None, "several"), ("i0", "trace")]


def test_only_days_that_changed_are_written_and_the_interactions_own_id_stays_as_given(tables):
    store(
        tables, "feedback", [thumb(1, request_id="r1"), thumb(1, interaction_id="i2", ts=interaction(0, "", "", day=2)["ts"])]
    )
    assert tie(tables, {"tutor"}).changed == {"tutor": [date(2026, 6, 1), date(2026, 6, 3)]}
    store(tables, "interactions", [interaction(2, "a", "b")])
    assert tie(tables, {"tutor"}).changed == {"tutor": [date(2026, 6, 3)]}
    assert [
        (row["interaction_id"], row["given_id"]) for row in sorted(read(tables, "feedback"), key=lambda row: row["dt"])
    ] == [(None, None), ("i2", "i2")]


@pytest.mark.slow
def test_whatever_the_order_of_reading_the_ties_are_the_same(tmp_path):
    def pair(identity, **changes):
        return {
            "timestamp": 1780300000,
            "request": {"messages": [{"role": "user", "content": identity}]},
            **changes,
            "response": {"id": identity, "choices": [{"message": {"role": "assistant", "content": "yes"}}]},
        }

    files = {
        "gateway": [pair("1", session_id="s"), pair("2", trace_id="t")],
        "late": [pair("3", session_id="s"), pair("1", session_id="s")],
        "thumbs": [
            {"response_id": "1", "value": 1, "timestamp": 1780300009},
            {"session_id": "s", "value": -1, "timestamp": 1780400000},
            {"trace_id": "t", "value": 1, "timestamp": 1780300009},
            {"response_id": "4", "value": 1, "timestamp": 1780300009},
        ],
    }
    seen = []
    for number, order in enumerate([*permutations(files)][::2]):
        home = tmp_path / str(number)
        home.mkdir()
        tables = Tables(LakeLayout.open(home / "lake"))
        for name in order:
            (home / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in files[name]))
            report = ingest(tables, "w", {"g": SourceSettings(uri=f"{home}/*.jsonl")})
        seen.append(sorted((row["source_row"], row["interaction_id"], row["tie"]) for row in read(tables, "feedback")))
        assert sum((Counter(day) for day in report.ties.values()), Counter()) == {
            "request": 1,
            "several": 1,
            "trace": 1,
            "unknown": 1,
        }
    assert all(each == seen[0] for each in seen) and [row[2] for row in seen[0]] == ["request", "several", "trace", "unknown"]


def test_feedback_of_no_workload_is_tied_where_its_interaction_is(tables, tmp_path):
    records = [
        {
            "timestamp": 1780300000,
            "workload_id": "b",
            "request": {"messages": [{"role": "user", "content": "x"}]},
            "response": {"id": "1", "choices": [{"message": {"role": "assistant", "content": "yes"}}]},
        },
        {"response_id": "1", "value": 1, "timestamp": 1780300009},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    ingest(tables, "w", {"g": SourceSettings(uri=str(tmp_path / "log.jsonl"), workloads={"b": "other"})})
    assert {row["workload"]: row["tie"] for row in read(tables, "feedback")} == {"w": "elsewhere", "other": "request"}


def test_feedback_is_tied_again_only_where_something_was_written(tables, monkeypatch):
    from resources.reading import ties as module

    asked, original = [], module.tie
    monkeypatch.setattr(module, "tie", lambda *given: (asked.append(1), original(*given))[1])
    store(tables, "interactions", [interaction(1, "Go", "north")])
    store(tables, "feedback", [thumb(1, request_id="r1"), thumb(1, request_id="r2")])
    first = module.ties_of(tables, "tutor", {"tutor"})
    again = module.ties_of(tables, "tutor", {"tutor"})
    assert again.days == first.days and first.days["tutor"] and len(asked) == 1
    store(tables, "interactions", [interaction(2, "Go", "south", day=1)])
    assert module.ties_of(tables, "tutor", {"tutor"}).days != first.days and len(asked) == 2
    assert module.ties_of(tables, "tutor", {"tutor", "other"}).days and len(asked) == 3
