"""A lake keeps the fingerprint of the key that its ids are hashed with, and whoever hashes ids refuses another."""

import json
import subprocess
import sys
import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from pipelines.checks.place import check_lake
from resources.digests.user_hash import USER_HASH_KEY, key_check, keyed_hash
from resources.erasing.erasure import complete_unfinished, plan_erasure
from resources.erasing.journal import ask_for
from resources.lake.lake import LakeError, LakeLayout
from resources.lake.sql_files import workbench
from resources.lake.tables import SCHEMAS, Tables
from resources.reading.commit import hash_erased
from resources.reading.ingestion import ingest, ingest_lock
from resources.sources.sources import SourceSettings
from tests.command import millrace
from tests.resources.records.test_formats import pair, read

ANOTHER = "hashed with another MILLRACE_USER_HASH_KEY than is set now: set the key that the lake was made with"
MISSING = "hashed with a key, and MILLRACE_USER_HASH_KEY is not set now: set the key that the lake was made with"
NEEDLESS = "hashed without a key, and MILLRACE_USER_HASH_KEY is set now: unset it, or run the recipe into a new lake"


def use(monkeypatch, key):
    monkeypatch.delenv(USER_HASH_KEY, raising=False)
    if key:
        monkeypatch.setenv(USER_HASH_KEY, key)


@pytest.mark.parametrize(("first", "then", "said"), [("k1", "k2", ANOTHER), ("k1", "", MISSING), ("", "k2", NEEDLESS)])
def test_another_key_is_refused_wherever_ids_are_hashed(tmp_path, monkeypatch, first, then, said):
    use(monkeypatch, first)
    read(tmp_path, [pair()])
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    assert check_lake(tables.lake.root)[-1].state == "ok"
    use(monkeypatch, then)
    with workbench() as connection:
        for hashes in (
            lambda: read(tmp_path, [pair(), pair(request_id="r2")]),
            lambda: plan_erasure(tables.lake, ask_for(tables, "user", "u1")),
            lambda: complete_unfinished(tables.lake),  # before each run
            lambda: hash_erased(connection, tables, ["shop"]),
        ):
            with pytest.raises(LakeError, match=said):
                hashes()
    [found] = [each for each in check_lake(tables.lake.root) if each.check == "user ids"]
    assert found.state == "problem" and said.startswith(found.message.partition("were ")[2])
    assert "k1" not in (tables.lake.root / "lake.json").read_text() + str(found)
    use(monkeypatch, first)
    assert len(read(tmp_path, [pair()])[0]) == 1 and plan_erasure(tables.lake, ask_for(tables, "user", "u1")).interactions == 1


def test_a_lake_without_rows_takes_the_key_that_is_set(tmp_path, monkeypatch):
    lake = LakeLayout.open(tmp_path / "lake")
    assert lake.key_check is None and plan_erasure(lake, ask_for(Tables(lake), "user", "u1")).is_empty
    for key in ("k1", "k2"):
        use(monkeypatch, key)
        read(tmp_path, [], name=f"{key}.jsonl")
        assert json.loads((lake.root / "lake.json").read_text()) == {"layout_version": 3, "key_check": key_check(key)}
    [row], *_ = read(tmp_path, [pair()])
    assert row["user_hash"] == keyed_hash("u1", "k2")


def test_forget_with_a_missing_key_says_so_and_offers_nothing(tmp_path, monkeypatch):
    use(monkeypatch, "k1")
    read(tmp_path, [pair()])
    use(monkeypatch, "")
    for words in ([], ["--apply", "--even-unseen"]):
        done = millrace("forget", "--user", "u1", *words, "--lake", tmp_path / "lake", check=2)
        said = " ".join((done.stdout + done.stderr).split())
        assert MISSING in said and "No row" not in said and "even-unseen" not in said
    assert Tables(LakeLayout.open(tmp_path / "lake")).open("erasures") is None


HOLD = (
    "import sys, time; from resources.reading.ingestion import ingest_lock; from resources.lake.lake import LakeLayout\n"
    "with ingest_lock(LakeLayout.open(sys.argv[1])): print('held', flush=True); time.sleep(60)"
)


def test_a_second_ingest_waits_for_the_first_and_a_killed_one_gives_way(tmp_path, caplog):
    lake = LakeLayout.open(tmp_path / "lake")
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(lake.root)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    entered = threading.Event()

    def enter() -> None:
        with ingest_lock(lake):
            entered.set()

    waiting = threading.Thread(target=enter)
    waiting.start()
    assert not entered.wait(1)
    assert f"waiting: process {holder.pid} on " in caplog.text
    holder.kill()
    holder.wait()
    waiting.join(20)
    assert entered.is_set()
    with ingest_lock(lake):  # and again, at once
        pass


ANSWER = {"role": "assistant", "content": "good day"}


@pytest.mark.parametrize("erased, kept", [("ann-7", ["bob-8"]), (None, ["ann-7", "bob-8"])])
def test_text_of_the_erased_is_emptied_and_of_others_is_not(tmp_path, erased, kept):
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    good = {"request": {"messages": [{"role": "user", "content": "hello"}]}, "response": {"choices": [{"message": ANSWER}]}}
    lines = [json.dumps({**good, "id": str(number)}) for number in range(8)]
    (tmp_path / "log.jsonl").write_text("\n".join([*lines, '{"user": "ann-7", cut', '{"user": "bob-8", cut']) + "\n")
    if erased:
        tombstone = {
            "workload": "w",
            "kind": "user",
            "sha256": keyed_hash(erased),
            "ts": datetime.now(UTC),
            "key_check": key_check(),
            "reason": "asked",
            "who": "ana",
        }
        tables.append("erasures", pa.Table.from_pylist([tombstone], schema=SCHEMAS["erasures"]))
    report = ingest(tables, "w", {"s": SourceSettings(uri=str(tmp_path / "log.jsonl"))})
    raw = [str(row["raw"]) for row in tables.open("quarantine").to_pyarrow_table().to_pylist() if row["raw"]]
    assert report.total.quarantined == 2
    assert [name for name in ("ann-7", "bob-8") if any(name in text for text in raw)] == kept
