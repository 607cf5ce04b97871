"""Logs to tables: the demo's traffic and tau-bench's conversations, days, changes, kills, erasures."""

import json
import os
import shutil
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from interaction_rows import heard

from pipelines.demo.traffic import write_traffic
from resources.digests.user_hash import keyed_hash
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.reading import batches as staging_module
from resources.reading import commit as commit_module
from resources.reading.ingestion import IngestCountsError, ingest, observe
from resources.sources.ledger import Ledger
from resources.sources.sources import SourceError, SourceSettings
from resources.sources.unread_objects import new_objects
from tests.thorough_cases import thorough_except

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ingest")]

TAU = Path(__file__).resolve().parents[4] / "shared/data/tau_airline.json"
TABLES = ("interactions", "feedback", "quarantine", "decisions", "objects")
KILLS_APART = 8
"""Tests that share the kills at every commit."""


def pair(identity, text="hello", ts=1780300000, **changes):
    return {
        "timestamp": ts,
        "request": {"messages": [{"role": "user", "content": text}]},
        "response": {
            "id": identity,
            "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": f"re: {text}"}}],
        },
        **changes,
    }


def write(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def content(tables, *names):
    """Every row of the tables, in an order that does not depend on files."""
    found = {}
    for name in names or TABLES:
        opened = tables.open(name)
        rows = opened.to_pyarrow_table().to_pylist() if opened else []
        found[name] = sorted(rows, key=lambda row: json.dumps(row, default=str))
    return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    directory = tmp_path_factory.mktemp("demo")
    report = write_traffic(directory, interactions=300, days=3, seed=1)
    sources = {name: SourceSettings(uri=str(directory / name)) for name in ("gateway", "litellm", "feedback")}
    return directory, sources, report


def test_the_demo_is_read_to_the_last_planted_thing(demo, tables):
    _, sources, planted = demo
    seen = observe(tables, "assistant", sources)
    assert seen.new_objects == seen.unread_objects > 100 and len(seen.days) >= 3
    report = ingest(tables, "assistant", sources).total
    assert report.rows == planted.interactions and report.repeated == planted.repeated_lines
    assert report.quarantined == planted.malformed_lines
    assert report.feedback == planted.feedback["up"] + planted.feedback["down"]
    assert report.read == planted.records + report.feedback
    found = content(tables)
    days = [row["dt"].isoformat() for row in found["interactions"]]
    assert {day: days.count(day) for day in set(days)} == planted.by_day
    assert sum(row["status"] == "failure" for row in found["interactions"]) == planted.failed
    assert sum(row["finish_reason"] == "length" for row in found["interactions"]) == planted.truncated
    assert {row["rule"] for row in found["decisions"]} == {"repeated_record"}
    codes = [row["error_code"] for row in found["quarantine"]]
    assert codes.count("invalid_utf8") == planted.malformed["binary"]
    assert codes.count("missing_field") == planted.malformed["no_messages"]
    assert codes.count("wrong_type") == planted.malformed["wrong_type"]
    assert codes.count("malformed_json") == planted.malformed["cut_json"] + planted.malformed["cut_object"]
    assert {entry["state"] for entry in found["objects"]} == {"read"}
    thumbs = heard(tables, "assistant")
    by_id = {row["interaction_id"]: row["request_id"] for row in found["interactions"]}
    assert thumbs.keys() <= by_id.keys() and set(thumbs.values()) == {1.0, -1.0}
    responses = {row["request_id"] for row in found["feedback"]}
    assert sum(by_id[identity] in responses for identity in thumbs) == planted.feedback["on_responses"]
    assert ingest(tables, "assistant", sources).total.objects == 0 and content(tables) == found
    assert observe(tables, "assistant", sources).unread_objects == 0


def test_day_by_day_is_the_same_as_all_at_once(demo, tables, tmp_path):
    _, sources, _ = demo
    for day in reversed(observe(tables, "assistant", sources).days):
        ingest(tables, "assistant", sources, days=[day])
    whole = Tables(LakeLayout.open(tmp_path / "whole"))
    ingest(whole, "assistant", sources)
    assert content(tables) == content(whole)


def test_days_restrict_what_is_read(demo, tables):
    _, sources, _ = demo
    report = ingest(tables, "assistant", sources, days=[date(2026, 6, 2)])
    assert report.total.rows > 0
    with Ledger.open(tables, "assistant") as ledger:
        assert all(date(2026, 6, 2) in entry.days for entry in ledger.entries() if entry.state == "read")
    assert observe(tables, "assistant", sources).unread_objects > 0


def test_an_object_that_cannot_be_read_for_its_days_has_the_reason_and_a_day(tables, tmp_path, monkeypatch):
    def refuse(item):
        raise OSError(5, "Input/output error")

    write(tmp_path / "logs" / "a.jsonl", pair("1"))
    monkeypatch.setattr("resources.sources.ledger.open_object", refuse)
    assert observe(tables, "w", {"g": SourceSettings(uri=str(tmp_path / "logs"))}).unread_objects == 1
    with Ledger.open(tables, "w") as ledger:
        [entry] = ledger.entries()
    assert (entry.state, entry.problem, entry.days) == ("failed", "Input/output error", (entry.fallback_day,))


def strike(monkeypatch, commits):
    """Lets so many commits through, of whatever table, and ends the run as a kill would before the next."""
    done, write = [], Tables._write

    def killed(self, *arguments, **options):
        if len(done) == commits:
            raise KeyboardInterrupt
        done.append(arguments[0])
        write(self, *arguments, **options)

    monkeypatch.setattr(Tables, "_write", killed)
    return lambda: monkeypatch.setattr(Tables, "_write", write)


def before_each_commit(monkeypatch, lake, copies):
    """Copies the lake before each commit from now on: what a kill would leave. Adds to the list that it returns."""
    found, write = [], Tables._write

    def copied(self, *arguments, **options):
        found.append(shutil.copytree(lake, copies / str(len(found))))
        write(self, *arguments, **options)

    monkeypatch.setattr(Tables, "_write", copied)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("commits", [1, 5, 9, 14])
def test_killed_between_commits_and_run_again(demo, tmp_path, monkeypatch, commits):
    _, sources, _ = demo
    calm, struck = Tables(LakeLayout.open(tmp_path / "calm")), Tables(LakeLayout.open(tmp_path / "struck"))
    ingest(calm, "assistant", sources)
    mend = strike(monkeypatch, commits)
    monkeypatch.setattr(staging_module, "BATCH_BYTES", 200_000)
    with pytest.raises(KeyboardInterrupt):
        ingest(struck, "assistant", sources)
    mend()
    ingest(struck, "assistant", sources)
    assert content(struck) == content(calm)


SIX = "resp_67ccd2bed1ec8196"
"""An id that names one request: shorter ones are told apart by what they ask."""


@pytest.fixture(scope="module")
def two_states(tmp_path_factory):
    """Logs in a second state, in which copies leave, return and beat others; lakes as a kill leaves them before each commit of
    the reading of it; the tables of a lake that read both states, undisturbed."""
    home = tmp_path_factory.mktemp("states")
    logs, sources = home / "logs", {"gateway": SourceSettings(uri=str(home / "logs"))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging_module, "BATCH_BYTES", 1)  # a batch for each object
        write(logs / "a.jsonl", pair("1"), pair("2", ts=1780400000), {"broken": 1})
        write(logs / "b.jsonl", pair("3"), pair("1"))
        write(logs / "e.jsonl", {"response_id": "3", "value": 1, "timestamp": 1780300000})
        write(logs / "c.jsonl", pair("4", ts=1780500000), pair("5", ts=1780500000))
        ingest(Tables(LakeLayout.open(home / "first")), "w", sources)
        # 1 of b returns, 5 of c is beaten by an earlier one, 6 repeats itself
        write(logs / "a.jsonl", pair("2", "changed", ts=1780400001), pair(SIX), pair(SIX, "other"))
        write(logs / "d.jsonl", pair("5", ts=1780490000), pair("7"), {"broken": 2})
        write(logs / "e.jsonl", {"response_id": "3", "value": -1, "timestamp": 1780300000})
        shutil.copytree(home / "first", home / "calm")
        struck = before_each_commit(patch, home / "calm", home / "struck")
        ingest(Tables(LakeLayout.open(home / "calm")), "w", sources)
    return struck, sources, content(Tables(LakeLayout.open(home / "calm")), *TABLES[:4])


def test_both_states_are_read_as_their_records_say(two_states):
    _, _, calm = two_states
    assert {row["request_id"]: row["source_uri"][-7:] for row in calm["interactions"]} == {
        "1": "b.jsonl",
        "2": "a.jsonl",
        "3": "b.jsonl",
        "4": "c.jsonl",
        "5": "d.jsonl",
        SIX: "a.jsonl",
        "7": "d.jsonl",
    }
    assert len(calm["decisions"]) == len(calm["feedback"]) + 1 == len(calm["quarantine"]) + 1 == 2


@pytest.mark.parametrize("first", thorough_except([0], range(KILLS_APART)))
def test_killed_at_every_commit_while_objects_change_and_repeat_each_other(two_states, monkeypatch, first):
    """Killed while it reads the second state: before commit `first`, and before every KILLS_APART-th one after it."""
    monkeypatch.setattr(staging_module, "BATCH_BYTES", 1)
    struck, sources, calm = two_states
    assert len(struck) > 2 * KILLS_APART
    for commits in range(first, len(struck), KILLS_APART):
        tables = Tables(LakeLayout.open(struck[commits]))
        ingest(tables, "w", sources)
        assert content(tables, *TABLES[:4]) == calm, f"killed before commit {commits + 1}"


def test_a_changed_object_replaces_its_own_rows(tables, tmp_path):
    first, second = tmp_path / "logs/a.jsonl", tmp_path / "logs/b.jsonl"
    sources = {"gateway": SourceSettings(uri=str(tmp_path / "logs"))}
    write(first, pair("1"), pair("2", ts=1780400000), {"broken": 1}, {"request": 1, "response": 2})
    write(second, pair("3"), pair("1"))
    ingest(tables, "w", sources)
    before = content(tables)
    assert [len(before[name]) for name in TABLES] == [3, 0, 2, 1, 2]
    write(first, pair("2", "changed", ts=1780500000))
    os.utime(first, (1, 1))
    assert observe(tables, "w", sources).new_objects == 1
    ingest(tables, "w", sources)
    after = content(tables)
    ids = {(row["request_id"], row["source_uri"], row["dt"]) for row in after["interactions"]}
    day = date(2026, 6, 1)
    assert ids == {("1", str(second), day), ("2", str(first), date(2026, 6, 3)), ("3", str(second), day)}
    assert not after["quarantine"] and not after["decisions"]  # the copy of 1 came back when its double left


def test_a_touched_object_is_not_read_again_and_a_changed_one_of_the_same_size_is(tables, tmp_path):
    first, second = tmp_path / "logs/a.jsonl", tmp_path / "logs/b.jsonl"
    sources = {"gateway": SourceSettings(uri=str(tmp_path / "logs"))}
    write(first, pair("1"))
    write(second, pair("2"))
    ingest(tables, "w", sources)
    before = content(tables)
    write(second, pair("3"))
    for path in (first, second):
        os.utime(path, (5, 5))
    assert observe(tables, "w", sources).new_objects == 1
    assert ingest(tables, "w", sources).total.objects == 1
    after = content(tables)
    assert {row["request_id"] for row in after["interactions"]} == {"1", "3"}
    assert [row for row in before["interactions"] if row["request_id"] == "1"] == [
        row for row in after["interactions"] if row["request_id"] == "1"
    ]
    assert {row["modified"].timestamp() for row in after["objects"]} == {5}  # so that their content is compared only once
    assert ingest(tables, "w", sources).total.objects == 0


def test_an_unreadable_object_is_failed_and_tried_again(tables, tmp_path, monkeypatch):
    write(tmp_path / "logs/a.jsonl", pair("1"))
    write(tmp_path / "logs/b.jsonl", pair("2"))
    sources = {"gateway": SourceSettings(uri=str(tmp_path / "logs"))}
    import resources.sources.ledger as prefetch

    whole = prefetch.open_object

    def shut(item):
        if item.uri.endswith("a.jsonl"):
            raise PermissionError(item.uri)
        return whole(item)

    monkeypatch.setattr(prefetch, "open_object", shut)
    report = ingest(tables, "w", sources)
    assert report.total.rows == 1 and report.failed_objects == [str(tmp_path / "logs/a.jsonl")]
    monkeypatch.setattr(prefetch, "open_object", whole)
    assert ingest(tables, "w", sources).total.rows == 1 and len(content(tables)["interactions"]) == 2


def test_what_was_erased_does_not_come_back(tables, tmp_path):
    write(tmp_path / "logs/a.jsonl", pair("1"), pair("2", "other"), pair("3", "third"))
    sources = {"gateway": SourceSettings(uri=str(tmp_path / "logs"))}
    ingest(tables, "w", sources)
    rows = {row["request_id"]: row for row in content(tables)["interactions"]}
    erased = [("interaction", keyed_hash(rows[each]["interaction_id"])) for each in "12"]
    tables.append(
        "erasures",
        pa.Table.from_pylist(
            [{"workload": "w", "kind": kind, "sha256": sha256, "ts": datetime.now(UTC)} for kind, sha256 in erased],
            schema=SCHEMAS["erasures"],
        ),
    )
    with (tmp_path / "logs/a.jsonl").open("a") as log:
        log.write("\n")
    report = ingest(tables, "w", sources)
    assert report.total.erased == 2 and report.total.rows == 1
    assert [row["request_id"] for row in content(tables)["interactions"]] == ["3"]
    assert {row["rule"] for row in content(tables)["decisions"]} == {"erased"}


def test_workloads_are_the_records_own_where_the_recipe_maps_them(tables, tmp_path):
    write(tmp_path / "logs/a.jsonl", pair("1", workload_id="x"), pair("2", workload_id="y"), pair("3"))
    sources = {"gateway": SourceSettings(uri=str(tmp_path / "logs"), workloads={"x": "other's"})}
    ingest(tables, "w", sources)
    ingest(tables, "w", sources)
    assert {row["request_id"]: row["workload"] for row in content(tables)["interactions"]} == {
        "1": "other's",
        "2": "w",
        "3": "w",
    }


def test_ids_do_not_depend_on_place(tables, tmp_path):
    other = Tables(LakeLayout.open(tmp_path / "other"))
    nameless = pair(None)
    write(tmp_path / "one/a.jsonl", pair("1"), nameless)
    write(tmp_path / "two/deep/z.jsonl", nameless, pair("1"), nameless)
    for place, where in ((tables, "one"), (other, "two")):
        ingest(place, "w", {"gateway": SourceSettings(uri=str(tmp_path / where))})
    one, two = ({row["interaction_id"] for row in content(each)["interactions"]} for each in (tables, other))
    assert one == two and len(one) == 2


def test_feedback_finds_its_interaction_whichever_comes_first(tables, tmp_path):
    write(
        tmp_path / "thumbs/a.jsonl",
        {"trace_id": "t", "value": -1, "timestamp": 1780300001},
        {"response_id": "1", "value": "up", "timestamp": 1780300002},
        {"response_id": "1", "value": "down", "timestamp": 1780300003},
        {"session_id": "s", "name": "solved", "value": 1, "timestamp": 1780300004},
        {"response_id": "unknown", "value": 1, "timestamp": 1780300005},
    )
    thumbs = {"thumbs": SourceSettings(uri=str(tmp_path / "thumbs"))}
    ingest(tables, "w", thumbs)
    write(
        tmp_path / "logs/a.jsonl",
        pair("1", session_id="s"),
        pair("2", "b", trace_id="t", session_id="s"),
        pair("3", "c", session_id="s"),
        pair("4", "d", session_id="another"),
    )
    ingest(tables, "w", {**thumbs, "gateway": SourceSettings(uri=str(tmp_path / "logs"))})
    ids = {row["interaction_id"]: row["request_id"] for row in content(tables)["interactions"]}
    assert {ids[identity]: value for identity, value in heard(tables, "w").items()} == {"1": -1.0, "2": -1.0, "3": 1.0}


def test_counts_that_do_not_add_up_stop_the_run_before_any_commit(tables, tmp_path, monkeypatch):
    write(tmp_path / "logs/a.jsonl", pair("1"), pair("2", "other"))
    real = commit_module.run

    def losing(connection, name, **parameters):
        if name == "reading/commit/known_ids":
            connection.execute("delete from staged where request_id = '1'")
        return real(connection, name, **parameters)

    monkeypatch.setattr(commit_module, "run", losing)
    with pytest.raises(IngestCountsError, match="2 records were read, but 1 kept"):
        ingest(tables, "w", {"gateway": SourceSettings(uri=str(tmp_path / "logs"))})
    assert tables.open("interactions") is None


def test_an_empty_source_is_named_and_nothing_is_written(tables, tmp_path):
    (tmp_path / "logs").mkdir()
    with pytest.raises(SourceError, match="source gateway"):
        observe(tables, "w", {"gateway": SourceSettings(uri=str(tmp_path / "logs"))})
    assert tables.open("objects") is None


def test_digest_names_what_waits(tables, tmp_path):
    sources = {"gateway": SourceSettings(uri=str(tmp_path / "logs"))}
    write(tmp_path / "logs/a.jsonl", pair("1"))
    first = observe(tables, "w", sources)
    assert observe(tables, "w", sources).digest == first.digest and first.days == [date(2026, 6, 1)]
    write(tmp_path / "logs/b.jsonl", pair("2", ts=1780400000))
    second = observe(tables, "w", sources)
    assert second.digest != first.digest and second.new_objects == 1 and len(second.days) == 2


@pytest.mark.skipif(not TAU.exists(), reason="../shared/data is not beside this checkout")
def test_tau_bench_conversations(tables):
    trajectories = json.loads(TAU.read_text())
    sources = {"tau": SourceSettings(uri=str(TAU))}
    report = ingest(tables, "airline", sources)
    turns = sum(message["role"] == "assistant" for each in trajectories for message in each["traj"][1:])
    assert report.total.rows == report.total.read == turns and report.total.attached_feedback == len(trajectories)
    rows = content(tables, "interactions")["interactions"]
    assert sum(row["finish_reason"] == "tool_calls" for row in rows) == 1164
    assert len({row["session_id"] for row in rows}) == 200
    rewards = heard(tables, "airline")
    assert len(rewards) == turns and set(rewards.values()) == {-1.0, 1.0}
    solved = {f"{each['task_id']}/{each['trial']}" for each in trajectories if each["reward"] == 1}
    sessions = {row["interaction_id"]: row["session_id"] for row in rows}
    assert {sessions[identity].split(":")[0] for identity, value in rewards.items() if value == 1} == solved


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_a_decision_names_the_copy_that_stays_now(tmp_path, order):
    """Two lines of the later object lost to each other before the earlier object, which beats both, was read."""

    def line(answer):
        return json.dumps(
            {
                "timestamp": 1780300000,
                "request": {"messages": [{"role": "user", "content": "q"}]},
                "response": {"id": SIX, "choices": [{"message": {"role": "assistant", "content": answer}}]},
            }
        )

    files = ["\n".join([line("a"), line("b")]), "\n".join([line("b"), line("a")])]
    sources = {"gateway": SourceSettings(uri=str(tmp_path / "logs"))}
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    for number in order:
        path = tmp_path / f"logs/dt=2026-06-0{number + 1}/{number}.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text(files[number])
        ingest(tables, "w", sources)
    details = [json.loads(row["detail"]) for row in tables.open("decisions").to_pyarrow_table().to_pylist()]
    assert sorted(
        (detail["uri"][-7:], detail["row"], detail["kept_uri"][-7:], detail["kept_row"], detail["same_content"])
        for detail in details
    ) == [("0.jsonl", 2, "0.jsonl", 1, False), ("1.jsonl", 1, "0.jsonl", 1, False), ("1.jsonl", 2, "0.jsonl", 1, True)]


def test_many_small_runs_leave_few_files_and_the_same_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("resources.lake.tables.MANY_FILES", 4)
    sources = {"gateway": SourceSettings(uri=str(tmp_path / "logs"))}
    tables, whole = Tables(LakeLayout.open(tmp_path / "lake")), Tables(LakeLayout.open(tmp_path / "whole"))
    for number in range(11):
        path = tmp_path / f"logs/dt=2026-06-01/{number}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps(
                {
                    "timestamp": 1780300000 + number,
                    "request": {"messages": [{"role": "user", "content": "q"}]},
                    "response": {"id": str(number), "choices": [{"message": {"role": "assistant", "content": "a"}}]},
                }
            )
        )
        assert ingest(tables, "w", sources).total.rows == 1
    ingest(whole, "w", sources)
    assert len(tables.files("interactions")) <= 5 and tables.rows_by_day("interactions", "w") == {date(2026, 6, 1): 11}
    found, expected = (
        sorted(each.open("interactions").to_pyarrow_table().to_pylist(), key=lambda row: row["request_id"])
        for each in (tables, whole)
    )
    assert found == expected and len(found) == 11


def test_a_changed_recipe_reads_its_objects_again(tables, tmp_path):
    """Another format, or other workloads: what was read before becomes what it would be if it were read now."""
    logs = tmp_path / "logs"
    write(logs / "a.jsonl", pair("1", workload_id="x"), pair("2", workload_id="y"), pair("3"))

    def read(into=tables, **settings):
        sources = {"gateway": SourceSettings(uri=str(logs), **settings)}
        waits = new_objects(into, "w", sources, {}, 10)
        return ingest(into, "w", sources).total, waits

    wrong, _ = read(format="litellm")
    assert wrong.rows == 0 and wrong.quarantined
    digests = set()
    for settings in ({}, {"workloads": {"x": "other's"}}, {"workloads": {"y": "third"}}, {"format": "openai_pairs"}):
        total, waits = read(**settings)
        assert total.rows == 3 and waits.objects == 1 and waits.days
        digests.add(waits.digest)
        anew = Tables(LakeLayout.open(tmp_path / f"lake{len(digests)}"))
        read(anew, **settings)
        assert content(tables) == content(anew), settings
        total, waits = read(**settings)
        assert total.read == 0 and waits.objects == 0
    assert len(digests) == 4


def test_copies_in_a_mapped_workload_come_back_when_their_double_leaves(tables, tmp_path):
    sources = {"gateway": SourceSettings(uri=str(tmp_path / "logs"), workloads={"x": "other's"})}
    write(tmp_path / "logs/a.jsonl", pair("1", workload_id="x"))
    write(tmp_path / "logs/b.jsonl", pair("1", workload_id="x"))
    assert ingest(tables, "w", sources).total.repeated == 1
    write(tmp_path / "logs/a.jsonl", pair("2"))
    ingest(tables, "w", sources)
    assert sorted(row["request_id"] for row in content(tables)["interactions"]) == ["1", "2"]


def trajectory(say, reward):
    return {
        "task_id": 0,
        "trial": 0,
        "reward": reward,
        "traj": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "same"},
            {"role": "user", "content": "and"},
            {"role": "assistant", "content": say},
        ],
    }


@pytest.mark.parametrize(
    "one, two, answers",
    [
        (trajectory("good", 1), trajectory("bad", 0), 2),
        (
            {"id": "0", "conversations": [{"from": "human", "value": "q1"}, {"from": "gpt", "value": "a1"}]},
            {"id": "0", "conversations": [{"from": "human", "value": "q2"}, {"from": "gpt", "value": "a2"}]},
            1,
        ),
        (
            {"id": "0", "messages": [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"}]},
            {"id": "0", "messages": [{"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"}]},
            1,
        ),
        ({"id": "0", "instruction": "q1", "output": "a"}, {"id": "0", "instruction": "q2", "output": "a"}, 1),
        ({"id": "0", "prompt": "q1", "completion": "a"}, {"id": "0", "prompt": "q2", "completion": "a"}, 1),
        ({"id": "0", "text": "one"}, {"id": "0", "text": "two"}, 1),
        ({"id": "0", "input_ids": [1, 2]}, {"id": "0", "input_ids": [1, 3]}, 1),
        (
            {"id": "0", "prompt": "q", "chosen": "a", "rejected": "b"},
            {"id": "0", "prompt": "r", "chosen": "a", "rejected": "b"},
            2,
        ),
    ],
    ids=["trajectories", "sharegpt", "messages", "alpaca", "prompt_completion", "text", "tokens", "preferences"],
)
def test_data_sets_whose_ids_begin_anew_in_each_file_keep_all_their_rows(tables, tmp_path, one, two, answers):
    write(tmp_path / "logs/a.jsonl", one)
    write(tmp_path / "logs/b.jsonl", two)
    (tmp_path / "logs/c.json").write_text(json.dumps(one))  # the same record once more, without a line's end
    total = ingest(tables, "w", {"sets": SourceSettings(uri=str(tmp_path / "logs"))}).total
    rows = content(tables)["interactions"]
    assert total.rows == len(rows) == 2 * answers and total.repeated == answers
    assert len({row["session_id"] for row in rows}) == 2
    assert {row["rule"] for row in content(tables)["decisions"]} == {"repeated_record"}
    if "reward" in one:
        rewards = heard(tables, "w")
        assert {row["source_uri"][-7:]: rewards[row["interaction_id"]] for row in rows} == {"a.jsonl": 1, "b.jsonl": -1}


def test_one_id_with_two_contents_is_a_decision_of_its_own(tables, tmp_path):
    sources = {"gateway": SourceSettings(uri=str(tmp_path / "logs"))}
    write(
        tmp_path / "logs/a.jsonl",
        pair("resp_67ccd2bed1ec8190"),
        pair("resp_67ccd2bed1ec8190"),
        pair("resp_67ccd2bed1ec8190", "another"),
    )
    ingest(tables, "w", sources)
    assert {(row["rule"], json.loads(row["detail"])["row"]) for row in content(tables)["decisions"]} == {
        ("repeated_record", 2),
        ("repeated_id", 3),
    }
    write(tmp_path / "logs/b.jsonl", pair("resp_67ccd2bed1ec8190", "another", ts=1780200000))  # beats them all
    ingest(tables, "w", sources)
    assert sorted((row["rule"], json.loads(row["detail"])["row"]) for row in content(tables)["decisions"]) == [
        ("repeated_id", 1),
        ("repeated_id", 2),
        ("repeated_record", 3),
    ]


def test_of_two_thumbs_of_one_moment_the_lower_holds_whatever_their_order(tmp_path):
    values = {}
    for place, names in (("one", "ab"), ("two", "ba")):
        tables = Tables(LakeLayout.open(tmp_path / f"lake-{place}"))
        write(tmp_path / place / "r.jsonl", pair("1"))
        for name, value in zip(names, ("up", "down"), strict=True):
            write(tmp_path / place / f"{name}.jsonl", {"response_id": "1", "value": value, "timestamp": 1780300001})
        ingest(tables, "w", {"g": SourceSettings(uri=str(tmp_path / place))})
        [values[place]] = heard(tables, "w").values()
    assert values == {"one": -1.0, "two": -1.0}
