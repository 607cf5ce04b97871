"""The page of `millrace chat`: who may read it, how an answer comes, what a thumb leaves."""

import http.client
import json
import re
import time
from datetime import UTC, datetime

import pytest

from resources.curating.cleaning import WHOLE
from resources.endpoints.approvals import approve_release
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.erasing.erasure import forget
from resources.erasing.journal import ask_for
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.chats import with_chats
from resources.reading.ingestion import ingest
from resources.releases.release import ReleaseRef
from resources.serving.chat import talking as module
from resources.serving.chat.page import PAGE, ChatExchange, NotRatableError, chat_page, keep_rating, ratable_in
from resources.serving.chat.talking import ChatError, Question, find_speaker
from tests.command import millrace
from tests.resources.serving.stand_in import ANSWER, DONE, StandIn

ASKED = {"speaker": 0, "messages": [{"role": "user", "content": "secret words"}], "seed": 3, "max_tokens": 9}


@pytest.fixture
def lake(tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_USER", "ana")
    monkeypatch.setattr(module, "_cached", lambda name: tmp_path if name == "org/model" else None)
    return LakeLayout.open(tmp_path / "lake")


@pytest.fixture
def talks():
    return [StandIn(), StandIn("org/model", workload="")]


@pytest.fixture
def ask(lake, talks):
    """ask("POST", "/chat", body, **headers): status, headers and lines of the answer."""
    with chat_page(lake, talks, "Be brief.", {"seed": 3}) as front:

        def ask(method, path, body=None, **headers):
            connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=20)
            given = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
            text = body if isinstance(body, str) or body is None else json.dumps(body)
            connection.request(method, path, text, {name: value.format(port=front.port) for name, value in given.items()})
            answer = connection.getresponse()
            said = answer.read().decode()
            connection.close()
            return answer.status, answer.headers, said

        ask.port = front.port
        yield ask


def test_the_page_is_one_file_that_loads_nothing_and_runs_only_its_own_script(ask):
    status, headers, text = ask("GET", "/")
    assert (
        status == 200
        and not re.search(r"""(?:src|href)=|https?://|url\(|@import""", text)
        and "NONCE" not in text
        and "{{" not in text
    )
    nonce = re.search(r'script nonce="([^"]{20,})"', text)[1]
    policy = headers["Content-Security-Policy"]
    assert f"script-src 'nonce-{nonce}'" in policy and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "innerHTML" not in PAGE.read_text() and headers["Cache-Control"] == "no-store"  # what a model says is never HTML
    about = json.loads(ask("GET", "/about")[2])
    assert (
        about["sampling"] == {"seed": 3} and about["speakers"][0]["temperature"] == 0.7 and about["speakers"][0]["top_p"] == 0.9
    )
    assert about["system"] == "Be brief." and [each["name"] for each in about["speakers"]] == [
        "champion 1 of tutor",
        "org/model",
    ]
    assert (
        about["speakers"][0] | {"not_kept": ""} == about["speakers"][0]
        and "no workload of a lake" in about["speakers"][1]["not_kept"]
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1:1"},
        {"Host": "evil.example:{port}"},  # DNS rebinding
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("GET", "/about"), ("POST", "/chat"), ("POST", "/stop"), ("POST", "/feedback")]
)
def test_other_pages_read_nothing_and_start_nothing(ask, talks, method, path, headers):
    status, _, said = ask(method, path, ASKED if method == "POST" else None, **headers)
    assert status == 403 and "only its own page" in said and not talks[0].asked and not talks[0].stopped


def test_what_the_page_does_not_send_is_refused_without_being_repeated(ask, talks):
    assert ask("POST", "/chat", ASKED, Content_Type="text/plain")[0] == 415  # a form of another page cannot send JSON
    for body in (
        "no json",
        {},
        {**ASKED, "speaker": 7},
        {**ASKED, "temperature": -1},
        {**ASKED, "messages": []},
        {**ASKED, "more": 1},
        [1],
        '"text"',
        "1",
        "null",
    ):
        status, _, said = ask("POST", "/chat", body)
        assert status == 400 and "secret" not in said, body
    assert not talks[0].asked and ask("GET", "/v1/models")[0] == 404 and ask("GET", "/../etc")[0] == 404


def test_an_answer_comes_in_pieces_and_a_thumb_is_kept_as_a_log_object(ask, talks, lake, monkeypatch):
    monkeypatch.setenv("MILLRACE_USER", "ana")
    status, _, said = ask("POST", "/chat", ASKED, Origin="http://127.0.0.1:{port}", Sec_Fetch_Site="same-origin")
    first, *lines = map(json.loads, said.splitlines())
    assert status == 200 and lines == ANSWER and talks[0].asked[0].seed == 3
    assert not (lake.root / "chats").exists()  # nobody rated it
    for value in ("up", "down"):
        assert ask("POST", "/feedback", {"id": first["id"], "value": value, "comment": "too short"})[0] == 200
    [path] = (lake.root / "chats/tutor").rglob("*.jsonl")
    exchange, thumb = map(json.loads, path.read_text().splitlines())
    assert (
        exchange["request"]["messages"] == ASKED["messages"]
        and exchange["release"] == "3f2a91c0d4e5"
        and "ana" not in path.read_text()
    )
    assert exchange["response"]["choices"][0]["message"]["content"] == "The small cat\x1b[31m!" and exchange["user_hash"]
    assert thumb | {"response_id": exchange["response"]["id"], "value": "down", "comment": "too short"} == thumb
    for wrong in ({"id": "other", "value": "up"}, {"id": first["id"], "value": "sideways"}, {"value": "up"}):
        assert ask("POST", "/feedback", wrong)[0] == 400
    model = json.loads(ask("POST", "/chat", {**ASKED, "speaker": 1})[2].splitlines()[0])
    assert ask("POST", "/feedback", {"id": model["id"], "value": "up"})[0] == 409


def test_an_answer_is_stopped_by_its_button_or_by_leaving(ask, talks):
    talks[0].waits = True
    connection = http.client.HTTPConnection("127.0.0.1", ask.port, timeout=20)
    connection.request("POST", "/chat", json.dumps(ASKED), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.readline()
    assert ask("POST", "/chat", ASKED)[0] == 409  # one answer at a time
    assert ask("POST", "/stop", {"speaker": 0})[0] == 200 and '"stopped"' in answer.read().decode().splitlines()[-1]
    connection.request("POST", "/chat", json.dumps(ASKED), {"Content-Type": "application/json"})
    connection.getresponse().readline()
    connection.sock.close() if connection.sock else None
    connection.close()
    until = time.monotonic() + 20
    while talks[0].stopped < 2 and time.monotonic() < until:
        time.sleep(0.02)
    assert talks[0].stopped >= 2


def test_each_model_is_sampled_as_it_is_served_unless_a_person_says_otherwise(ask, talks):
    talks[1].temperature, talks[1].top_p = 0.2, 0.5
    for said in ({}, {"temperature": 1.5}):
        for speaker in (0, 1):
            assert ask("POST", "/chat", {**ASKED, "speaker": speaker, **said})[0] == 200
    assert [(one.temperature, one.top_p) for talk in talks for one in talk.asked] == [
        (0.7, 0.9),
        (1.5, 0.9),
        (0.2, 0.5),
        (1.5, 0.5),
    ]
    script = PAGE.read_text()
    assert '...given("temperature"), ...given("top_p")' in script and "[hidden] { display: none !important; }" in script


def test_a_model_that_ended_says_so_in_the_answer(ask, talks):
    talks[0].die()
    assert json.loads(ask("POST", "/chat", ASKED)[2].splitlines()[-1]) == {"error": "the process ended"}


ANA = Actor("ana", "MILLRACE_USER")


def test_workloads_aliases_releases_directories_and_hub_ids(lake, make_release, tmp_path):
    old = make_release(lake, 1, drafts=True)
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(old))
    assert find_speaker(lake, "tutor").name == f"candidate {old.name} of tutor"  # before there is a champion
    approve_release(lake, old, ANA)
    new = make_release(lake, 2)
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(new))
    for name in ("tutor", "champion", "tutor/champion"):
        found = find_speaker(lake, name)
        assert (found.name, found.release, found.workload) == (f"champion {old.name} of tutor", old.name, "tutor")
    assert (
        found.drafting.method == "drafter"
        and found.drafter.is_dir()
        and found.words[1:3] == ["drafter", str(found.drafting.num_speculative_tokens)]
    )
    assert find_speaker(lake, "candidate").release == new.name and find_speaker(lake, new.name[:7]).drafting.method == "none"
    assert find_speaker(lake, str(old)).release == old.name
    (tmp_path / "config.json").write_text("{}")
    assert find_speaker(lake, str(tmp_path)).workload == "" and find_speaker(None, str(tmp_path)).words[1:] == ["none", "0"]
    assert find_speaker(None, "org/model").model == tmp_path
    for place, name, said in ((lake, "nobody", r"no alias .*tutor/champion"), (None, "tutor", "name it with --lake")):
        with pytest.raises(ChatError, match=said):
            find_speaker(place, name)


def test_the_system_prompt_of_most_rows_is_the_release_s():
    rows = [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        [{"role": "user", "content": "hi"}],
        [],
    ]
    assert [module._system(row) for row in rows] == ["Be brief.", "", ""]


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
