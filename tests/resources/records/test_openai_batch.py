"""OpenAI batches: requests and responses in different objects become one record, whichever comes first."""

import itertools
import json

import pytest

from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading import pairing
from resources.reading.ingestion import ingest
from resources.reading.pairing import pairing_key
from resources.records.formats import detect
from resources.sources import ledger as prefetch
from resources.sources.sources import SourceSettings
from tests.thorough_cases import thorough_except

TABLES = ("interactions", "feedback", "quarantine", "decisions")
KILLS_APART = 4
"""Tests that share the kills at every commit."""


def request(custom_id, text):
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0.1},
    }


def response(custom_id, text, name="b"):
    body = {
        "id": f"chatcmpl-{name}-{custom_id}",
        "object": "chat.completion",
        "created": 1780300000,
        "model": "m-1",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    return {
        "id": f"batch_req_{name}_{custom_id}",
        "custom_id": custom_id,
        "error": None,
        "response": {"status_code": 200, "request_id": f"req_{name}_{custom_id}", "body": body},
    }


FAILED = {"id": "batch_req_3", "custom_id": "c", "response": None,
    "error": {"code": "batch_expired",
        "message": "This request could not be executed before the batch expired."}}  # fmt: skip
REFUSED = {
    "id": "batch_req_4", "custom_id": "d", "error": None,
    "response": {"status_code": 400, "request_id": "req_4", "body": {"error": {"message": "too long", "type": "invalid_request_error"}}},
}  # fmt: skip

FILES = {
    "day1/b1_input.jsonl": [
        request("a", "one"),
        request("b", "two"),
        request("c", "three"),
        request("d", "four"),
        request("late", "five"),
    ],
    "day1/b1_output.jsonl": [response("b", "2"), response("a", "1"), response("stranger", "?")],
    "day1/b1_errors.jsonl": [FAILED, REFUSED],
    "day1/b2_input.jsonl": [request("a", "other")],
    "day1/b2_output.jsonl": [response("a", "other answer", "b2")],
    "day2/input/x.jsonl": [request("a", "third")],
    "day2/output/x.jsonl": [response("a", "third answer", "b3")],
}
ORDERS = list(itertools.permutations(sorted(FILES)))[::840]


def put(folder, names):
    for name in names:
        path = folder / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in FILES[name]))


def read(folder, lake="lake"):
    tables = Tables(LakeLayout.open(folder / lake))
    report = ingest(tables, "shop", {"batches": SourceSettings(uri=str(folder / "logs"))})
    found = {}
    for name in TABLES:
        opened = tables.open(name)
        found[name] = opened.to_pyarrow_table().to_pylist() if opened else []
    return found, report


def plain(found):
    return {name: sorted(json.dumps(row, default=str) for row in rows) for name, rows in found.items()}


def test_requests_and_responses_become_pairs(tmp_path):
    put(tmp_path, FILES)
    found, report = read(tmp_path)
    rows = {(row["source_uri"].rpartition("logs/")[2], row["source_row"]): row for row in found["interactions"]}
    told = {
        place: (json.loads(row["messages"])[0]["content"], row["completion"] and json.loads(row["completion"])["content"])
        for place, row in rows.items()
    }
    assert told == {
        ("day1/b1_output.jsonl", 1): ("two", "2"),
        ("day1/b1_output.jsonl", 2): ("one", "1"),
        ("day1/b1_errors.jsonl", 1): ("three", None),
        ("day1/b1_errors.jsonl", 2): ("four", None),
        ("day1/b2_output.jsonl", 1): ("other", "other answer"),
        ("day2/output/x.jsonl", 1): ("third", "third answer"),
    }
    assert rows["day1/b1_errors.jsonl", 2]["error"] == "too long" and rows["day1/b1_errors.jsonl", 1]["status"] == "failure"
    row = rows["day1/b1_output.jsonl", 2]
    assert row["params"] == '{"temperature":0.1}' and row["prompt_tokens"] == 3 and str(row["dt"]) == "2026-06-01"
    assert sorted((bad["error_code"], bad["source_row"], bad["message"]) for bad in found["quarantine"]) == [
        ("unpaired", 3, "no request for the custom_id stranger in this folder"),
        ("unpaired", 5, "no response for the custom_id late in this folder"),
    ]
    assert (report.total.read, report.total.rows, report.total.quarantined) == (8, 6, 2)


def test_pairs_are_read_page_by_page_to_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(pairing, "PAIRS_TOGETHER", 3)
    places = [f"{number:02}" for number in range(10)]
    monkeypatch.setitem(FILES, "day1/b1_input.jsonl", [request(place, f"ask {place}") for place in places])
    monkeypatch.setitem(FILES, "day1/b1_output.jsonl", [response(place, f"say {place}") for place in reversed(places)])
    put(tmp_path, ["day1/b1_input.jsonl", "day1/b1_output.jsonl"])
    found, report = read(tmp_path)
    said = {
        (json.loads(row["messages"])[0]["content"], json.loads(row["completion"])["content"]) for row in found["interactions"]
    }
    assert said == {(f"ask {place}", f"say {place}") for place in places} and report.total.rows == report.total.read == 10


@pytest.mark.parametrize("order", thorough_except(ORDERS[:1], ORDERS))
def test_the_order_in_which_the_objects_come_does_not_matter(tmp_path, order):
    put(tmp_path, FILES)
    whole, _ = read(tmp_path, "whole")
    for path in (tmp_path / "logs").rglob("*.jsonl"):
        path.unlink()
    for name in order:
        put(tmp_path, [name])
        piecewise, _ = read(tmp_path)
    assert plain(piecewise) == plain(whole)
    again, report = read(tmp_path)
    assert report.total.read == 0 and plain(again) == plain(whole)


def test_either_side_may_change(tmp_path):
    put(tmp_path, ["day2/input/x.jsonl", "day2/output/x.jsonl"])
    read(tmp_path)
    path = tmp_path / "logs/day2/input/x.jsonl"
    path.write_text(json.dumps(request("a", "changed")) + "\n" + json.dumps(request("z", "more")))
    found, _ = read(tmp_path)
    (row,) = found["interactions"]
    assert json.loads(row["messages"])[0]["content"] == "changed" and len(found["quarantine"]) == 1
    assert plain(found) == plain(read(tmp_path, "anew")[0])


def test_several_requests_of_one_name_are_not_guessed_at(tmp_path):
    for name, record in (("one.jsonl", request("a", "1")), ("two.jsonl", request("a", "2")), ("out.jsonl", response("a", "?"))):
        (tmp_path / "logs").mkdir(exist_ok=True)
        (tmp_path / "logs" / name).write_text(json.dumps(record))
    found, report = read(tmp_path)
    assert not found["interactions"] and {bad["error_code"] for bad in found["quarantine"]} == {"ambiguous_custom_id"}
    assert report.total.read == 3


def test_places_leave_the_words_of_the_sides_out():
    assert (
        pairing_key("s3://b/day/outputs/b1_output.jsonl.gz")
        == pairing_key("s3://b/day/inputs/b1-input.jsonl")
        == ("s3://b/day", "b1")
    )
    assert pairing_key("/x/batch_1_errors.jsonl") == ("/x", "batch_1")


@pytest.mark.parametrize("record", [request("a", "b"), response("a", "b"), FAILED, REFUSED])
def test_both_sides_are_recognised(record):
    assert detect([record]).name == "openai_batch"


def test_pairs_stay_while_one_of_their_sides_is_gone_or_cannot_be_read(tmp_path, monkeypatch):
    put(tmp_path, ["day1/b1_input.jsonl", "day1/b1_output.jsonl"])
    whole, _ = read(tmp_path)
    assert len(whole["interactions"]) == 2
    open_object = prefetch.open_object
    requests = tmp_path / "logs/day1/b1_input.jsonl"

    def shut(item):
        if item.uri == str(requests):
            raise PermissionError(item.uri)
        return open_object(item)

    monkeypatch.setattr(prefetch, "open_object", shut)
    put(tmp_path, ["day1/b2_input.jsonl", "day1/b2_output.jsonl"])
    found, report = read(tmp_path)
    assert sorted(report.failed_objects) == [str(requests), str(requests.with_name("b1_output.jsonl"))]
    assert len(found["interactions"]) == 3  # the old ones, and the new batch's
    monkeypatch.setattr(prefetch, "open_object", open_object)
    found, report = read(tmp_path)
    assert not report.failed_objects and plain(found) == plain(read(tmp_path, "anew")[0])
    requests.unlink()
    put(tmp_path, ["day1/b1_errors.jsonl"])
    found, report = read(tmp_path)
    assert not report.failed_objects and len(found["interactions"]) == 3
    assert [row["source_uri"][-15:] for row in found["quarantine"] if "errors" in row["source_uri"]] == ["b1_errors.jsonl"] * 2
    responses = requests.with_name("b1_output.jsonl")
    responses.write_bytes(responses.read_bytes() + b"\n")  # changed: without its requests nothing could come of it
    found, report = read(tmp_path)
    assert report.failed_objects == [str(responses)] and len(found["interactions"]) == 3
    assert f"{requests} holds the other side of its request-response pairs" in str(*report.failures.values())
    put(tmp_path, ["day1/b1_input.jsonl"])
    found, report = read(tmp_path)
    assert not report.failed_objects and plain(found) == plain(read(tmp_path, "whole")[0])


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.thorough) for first in range(1, KILLS_APART))])
@pytest.mark.slow
def test_killed_before_any_commit_while_sides_arrive_and_change(tmp_path, monkeypatch, first):
    """Before commit `first`, and before every KILLS_APART-th one after it."""
    write = Tables._write

    def states(name, commits):
        """The tables after three arrivals, the later ones killed before a commit and run again; None where none was killed."""
        for path in (tmp_path / "logs").rglob("*.jsonl"):
            path.unlink()
        killed = False
        for number, names in enumerate(
            (
                ["day1/b1_output.jsonl", "day2/input/x.jsonl"],
                ["day1/b1_input.jsonl", "day2/output/x.jsonl", "day1/b2_output.jsonl"],
                ["day1/b1_errors.jsonl", "day1/b2_input.jsonl"],
            )
        ):
            put(tmp_path, names)
            done = []

            def struck(self, *arguments, _done=done, **options):
                if len(_done) == commits:
                    raise KeyboardInterrupt
                _done.append(1)
                write(self, *arguments, **options)

            if number:
                monkeypatch.setattr(Tables, "_write", struck)
                try:
                    read(tmp_path, name)
                except KeyboardInterrupt:
                    killed = True
                monkeypatch.setattr(Tables, "_write", write)
            found, _ = read(tmp_path, name)
        return plain(found) if killed else None

    kills, calm = 0, None
    for commits in range(first, 100, KILLS_APART):
        found = states(f"struck{commits}", commits)
        calm = calm or plain(read(tmp_path, "calm")[0])
        if found is None:
            break
        kills += 1
        assert found == calm, f"killed before commit {commits + 1}"
    assert kills > 0 and len(calm["interactions"]) == 6
