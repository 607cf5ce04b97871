"""A thumb in a chat becomes rows of the lake, which an erasure reaches."""

import json
from datetime import UTC, datetime

import pytest

from resources.curating.cleaning import WHOLE
from resources.endpoints.endpoint_log import Actor
from resources.erasing.erasure import forget
from resources.erasing.journal import ask_for
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.chats import with_chats
from resources.reading.ingestion import ingest
from resources.serving.chat.page import ChatExchange, NotRatableError, keep_rating, ratable_in
from resources.serving.chat.talking import Question
from tests.command import millrace
from tests.resources.serving.stand_in import ANSWER, DONE, StandIn


@pytest.fixture
def lake(tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_USER", "ana")
    return LakeLayout.open(tmp_path / "lake")


def rated(lake, text="what does a small cat want for its dinner tonight", value="down"):
    exchange = ChatExchange(
        StandIn().speaker, Question(messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}])
    )
    for line in ANSWER:
        exchange.add(line)
    keep_rating(lake, exchange, value, "wrong cat")
    return exchange


def read(lake):
    sources = with_chats(lake.root, "tutor", {})
    ingest(Tables(lake), "tutor", sources, [datetime.now(UTC).date()])
    return [Tables(lake).open(name).to_pyarrow_table().to_pylist() for name in ("interactions", "feedback")]


def test_the_next_run_reads_a_rated_answer_with_its_thumb_and_who_rated_can_be_forgotten(lake):
    assert with_chats(lake.root, "tutor", {"gateway": 1}) == {"gateway": 1}  # nothing was rated yet
    exchange = rated(lake)
    [[row], [thumb]] = read(lake)
    assert row["request_id"] == exchange.id and row["source"] == "millrace_chat" and row["served_model_digest"] == "d" * 64
    assert "small cat" in row["messages"] and row["completion_tokens"] == 4 and row["user_hash"]
    assert row["latency_ms"] is None and row["ttft_ms"] is None  # this machine's, and not a server's
    assert thumb["interaction_id"] == row["interaction_id"] and thumb["comment"] == "wrong cat" and thumb["name"] == "thumbs"
    keep_rating(lake, exchange, "up")  # another mind
    [[row], [thumb]] = read(lake)
    assert thumb["comment"] is None and len(with_chats(lake.root, "tutor", {})) == 1
    forget(lake, ask_for(Tables(lake), "user", "ana"), Actor("bo", "test"), vacuum=True)
    assert not any(b"dinner tonight" in path.read_bytes() for path in lake.root.rglob("*") if path.is_file())
    assert with_chats(lake.root, "tutor", {}) == {}  # an empty folder would stop the run
    assert not any(Tables(lake).open(name).to_pyarrow_table().num_rows for name in ("interactions", "feedback"))


def test_a_rated_answer_that_no_run_has_read_goes_also_for_a_user_who_was_forgotten_before(lake):
    for text in ("what does a small cat want", "and what does a dog want"):
        rated(lake, text)
        assert list((lake.root / "chats").rglob("*.jsonl"))
        millrace("forget", "--user", "ana", "--lake", lake.root, "--apply")
        assert not list((lake.root / "chats").rglob("*.jsonl"))


def test_messages_that_the_model_did_not_see_are_not_kept(lake):
    said = [
        ("system", "Be brief."),
        ("user", "one"),
        ("assistant", "uno"),
        ("user", "two"),
        ("assistant", "dos"),
        ("user", "three"),
    ]
    for first, dropped in ((0, 2), (0, 0), (1, 4)):
        asked = [{"role": role, "content": content} for role, content in said[first:]]
        exchange = ChatExchange(StandIn().speaker, Question(messages=asked), done={**DONE, "dropped": dropped})
        keep_rating(lake, exchange, "up")
        [path] = (lake.root / "chats").rglob(f"{exchange.id}.jsonl")
        lead = 1 - first
        assert json.loads(path.read_text().splitlines()[0])["request"]["messages"] == [*asked[:lead], *asked[lead + dropped :]]


def test_an_answer_that_a_person_stopped_is_no_whole_one(lake):
    exchange = rated(lake)
    for done, reason in (("stopped", "cancelled"), ("length", "length"), ("stop", "stop")):
        exchange.done["done"] = done
        keep_rating(lake, exchange, "up")
        [path] = (lake.root / "chats").rglob("*.jsonl")
        assert json.loads(path.read_text().splitlines()[0])["response"]["choices"][0]["finish_reason"] == reason
    assert "cancelled" not in WHOLE


def test_a_model_of_no_workload_keeps_nothing(lake):
    assert ratable_in(lake, StandIn().speaker) is lake
    for where, speaker in ((lake, StandIn(workload="").speaker), (None, StandIn().speaker)):
        with pytest.raises(NotRatableError, match="no workload"):
            ratable_in(where, speaker)
