"""Scores from a judge: asked once for each text, kept whatever happens, columns of what is curated; secrets stay outside."""

import json
import socket

import pyarrow.parquet as pq
import pytest
from interaction_rows import days_of, interaction, read, store
from judge_server import completion, judge_server, scores
from pydantic import ValidationError

from model_ops.completions.endpoint import read_chat
from resources.composing.datasets import DatasetSettings, build_sft_dataset
from resources.curating import judgements as judging
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.judge_endpoint import JudgeError, JudgeSettings, scored
from resources.curating.judgements import judge
from resources.curating.selection import curate
from resources.digests.slices import slice_digest
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("judge")]


@pytest.fixture
def tables(tmp_path):
    """Four texts in five healthy rows, and one that failed."""
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    rows = [
        interaction(1, "what is a mill for", "it is for grain"),
        interaction(2, "what is a mill for", "it is for grain", minutes=1),
        interaction(3, "mail ann@example.org the sum", "sent", minutes=2),
        interaction(4, "write a poem about water wheels", "round and round", day=1),
        interaction(5, "prove it", "no", day=1, minutes=1),
        interaction(6, "an error", "never", error="boom"),
    ]
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), CurationSettings())
    return tables


def settings(base_url, **changes):
    return JudgeSettings(**{"base_url": base_url, "model": "big", "concurrency": 2, "timeout_s": 5, "retries": 2} | changes)


def by_length(body, number):
    said = body["messages"][1]["content"]
    return scores(9 if "poem" in said else 3, 2)


def counts(report):
    return (report.wanted, report.known, report.scored, report.unscored)


def test_each_text_is_asked_once_and_not_again(tables):
    with judge_server(by_length) as (base_url, seen):
        assert counts(judge(tables, "tutor", settings(base_url))) == (4, 0, 4, 0)
        assert len(seen) == 4 and {request["path"] for request in seen} == {"/v1/chat/completions"}
        assert counts(judge(tables, "tutor", settings(base_url))) == (4, 4, 0, 0)
        assert len(seen) == 4
        assert counts(judge(tables, "tutor", settings(base_url, prompt="Rate it."))) == (4, 0, 4, 0)
        assert counts(judge(tables, "tutor", settings(base_url, model="bigger"))) == (4, 0, 4, 0)
        everything = json.dumps([request["body"] for request in seen])
    assert "ann@example.org" not in everything and "EMAIL_1" in everything and "an error" not in everything
    found = read(tables, "judgements")
    assert len(found) == 24
    row = next(row for row in found if row["interaction_id"] == "i4" and row["name"] == "quality" and row["model"] == "big")
    assert row["score"] == 9 and json.loads(row["answer"]) == {"quality": 9, "difficulty": 2} and row["prompt"]


def test_only_so_many_rows_are_judged_and_the_same_ones_every_day(tables):
    with judge_server(by_length) as (base_url, seen):
        assert counts(judge(tables, "tutor", settings(base_url, max_rows=2))) == (2, 0, 2, 0)
        assert counts(judge(tables, "tutor", settings(base_url, max_rows=3))) == (3, 2, 1, 0)
        assert len(seen) == 3


def test_a_busy_server_is_asked_again_and_an_odd_reply_is_no_score(tables):
    def answer(body, number):
        if number == 1:
            return 503, {}
        return completion("I would rather not") if "poem" in body["messages"][1]["content"] else scores(5, 5)

    with judge_server(answer) as (base_url, seen):
        assert counts(judge(tables, "tutor", settings(base_url))) == (4, 0, 3, 1)
        assert len(seen) == 5
    with judge_server(by_length) as (base_url, seen):
        assert counts(judge(tables, "tutor", settings(base_url))) == (4, 3, 1, 0)
    found = [row for row in read(tables, "judgements") if row["interaction_id"] == "i4"]
    assert sorted((row["name"], row["score"]) for row in found) == [("difficulty", 2.0), ("quality", 9.0)]


def test_a_judge_that_is_down_is_said_and_what_waits_is_on_record(tables):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(
        JudgeError, match=r"does not answer \(no reply: NewConnectionError\): 0 rows were judged and kept, 4 are not judged yet"
    ):
        judge(tables, "tutor", settings(nobody, retries=0))
    found = read(tables, "judgements")
    assert {row["score"] for row in found} == {None} and len({row["interaction_id"] for row in found}) == 4


def test_a_judge_that_goes_away_keeps_what_it_said(tables, monkeypatch):
    monkeypatch.setattr(judging, "AT_A_TIME", 2)
    said = r"does not answer \(HTTP 500\): 2 rows were judged and kept, 2 are not judged yet"
    leaving = judge_server(lambda body, number: scores(7, 7) if number <= 2 else (500, {}))
    with leaving as (base_url, _), pytest.raises(JudgeError, match=said):
        judge(tables, "tutor", settings(base_url, retries=0, concurrency=1))
    assert sum(row["score"] is not None for row in read(tables, "judgements")) == 4
    with judge_server(by_length) as (base_url, _):
        assert counts(judge(tables, "tutor", settings(base_url))) == (4, 2, 2, 0)
    assert len(read(tables, "judgements")) == 8


def test_a_judge_that_talks_nonsense_is_not_asked_about_every_row(tables, monkeypatch):
    store(tables, "interactions", [interaction(100 + n, f"what is number {n}", f"it is {n}") for n in range(80)])
    clean(tables, "tutor", days_of(read(tables, "interactions")), CurationSettings())
    monkeypatch.setattr(judging, "AT_A_TIME", 40)
    for status, text, reason in ((200, "user text", "no scores in its text"), (400, "user text", "HTTP 400")):
        nonsense = judge_server(lambda body, number, status=status, text=text: (status, completion(text)[1]))
        with (
            nonsense as (base_url, seen),
            pytest.raises(JudgeError, match=f"no score in 40 replies .mostly: {reason}") as caught,
        ):
            judge(tables, "tutor", settings(base_url))
        assert len(seen) == 40 and "user text" not in str(caught.value)


def test_half_characters_do_no_harm(tables):
    def answer(body, number):
        return completion('\ud83d {"quality": 4, "difficulty": 4}')

    with judge_server(answer) as (base_url, _):
        assert counts(judge(tables, "tutor", settings(base_url))) == (4, 0, 4, 0)
    assert {row["answer"][0] for row in read(tables, "judgements")} == {"?"}


def test_a_refusal_names_what_to_check_and_the_key_stays_in_the_environment(tables, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sesame-open")
    said = "curation.judge: .* refuses big .HTTP 401.: check base_url, model and api_key_env"
    refusing = judge_server(lambda body, number: (401, {}) if number == 3 else by_length(body, number))
    with refusing as (base_url, seen):
        with pytest.raises(JudgeError, match=said):
            judge(tables, "tutor", settings(base_url, api_key_env="JUDGE_KEY", concurrency=1))
        assert {request["headers"]["Authorization"] for request in seen} == {"Bearer sesame-open"}
    found = read(tables, "judgements")
    assert len(found) == 4 and "sesame-open" not in str(found), "the two scores before are kept"


def test_scores_are_columns_and_a_low_one_is_a_decision(tables, tmp_path):
    with judge_server(by_length) as (base_url, _):
        curation = CurationSettings(judge=settings(base_url), min_quality=5)
        before = slice_digest(tables, "judgements", "tutor")
        judge(tables, "tutor", curation.judge)
        assert slice_digest(tables, "judgements", "tutor") != before
    report = curate(tables, "tutor", tmp_path / "c1", curation, None)
    assert (report.read, report.rows, report.dropped) == (5, 1, {"low_quality": 4})
    decisions = {row["interaction_id"]: row["detail"] for row in read(tables, "decisions") if row["rule"] == "low_quality"}
    assert decisions.keys() == {"i1", "i2", "i3", "i5"} and decisions["i1"] == "quality 3 of 10"
    everyone = CurationSettings(judge=settings(base_url), near_duplicates={"enabled": False})
    curate(tables, "tutor", tmp_path / "c2", everyone, None)
    kept = pq.read_table(tmp_path / "c2" / "curated.parquet").to_pylist()
    assert {row["quality"] for row in kept} == {3.0, 9.0} and {row["difficulty"] for row in kept} == {2.0}
    build_sft_dataset(
        tmp_path / "c2" / "curated.parquet", None, tmp_path / "d", DatasetSettings(validation_share=0, test_share=0)
    )
    assert 9.0 in pq.read_table(tmp_path / "d" / "train.parquet")["quality"].to_pylist()


def test_without_a_judge_the_columns_are_empty(tables, tmp_path):
    with judge_server(by_length) as (base_url, _):
        judge(tables, "tutor", settings(base_url))
    curate(tables, "tutor", tmp_path / "c1", CurationSettings(), None)
    kept = pq.read_table(tmp_path / "c1" / "curated.parquet")
    assert kept["quality"].null_count == kept["difficulty"].null_count == len(kept) > 0


@pytest.mark.parametrize("text, found", [
    ('{"quality": 7, "difficulty": 3}', (7, 3)),
    ('Let me think {"a": 1}.\n```json\n{"quality": "8", "difficulty": 2.5}\n```', (8, 2.5)),
    ('{"quality": 11, "difficulty": 0}', (None, None)), ('{"quality": true, "difficulty": null}', (None, None)),
    ("quality 7", (None, None)), ("", (None, None)), (None, (None, None)),
])  # fmt: skip
def test_replies(text, found):
    reply = scored(read_chat(json.dumps(completion(text)[1]).encode()))
    assert (reply.quality, reply.difficulty) == found


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(ValidationError, match="min_quality needs scores"):
        CurationSettings(min_quality=5)
    with pytest.raises(ValidationError, match="pii: keep"):
        CurationSettings(pii="keep", judge=settings("http://x/v1"))
    one, other = (CurationSettings(judge=settings("http://x/v1", concurrency=n)).as_config() for n in (1, 2))
    assert one == other and one != CurationSettings(judge=settings("http://x/v1", prompt="p")).as_config()
