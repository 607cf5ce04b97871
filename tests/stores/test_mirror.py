"""A lake in a bucket: two machines see one lake, the slower of two writers is told, and nothing unfinished is ever visible."""

import json
import os

import pyarrow as pa
import pytest
from made_versions import LARGE, made

from resources.artefacts.registry import Registry
from resources.composing.teachers.answer_store import AnswerStore, StoredAnswer
from resources.digests.user_hash import USER_HASH_KEY, key_check
from resources.erasing.erasure import remove_old_files
from resources.lake.lake import LakeError, LakeLayout
from resources.lake.lake_use import LakeInUse, alone, at_work
from resources.lake.tables import SCHEMAS, Tables
from resources.manifests.manifest import ManifestError, changed_files
from resources.reading.commit import add_tombstones, keep_key
from stores.mirror import mirror as mirrors
from stores.s3 import S3Error

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("mirror")]


def quarantined(*rows: int, workload="w") -> pa.Table:
    return pa.Table.from_pylist(
        [{"workload": workload, "source": "s", "source_uri": "u", "source_row": row} for row in rows],
        schema=SCHEMAS["quarantine"],
    )


def rows_of(lake, workload="w") -> list[int]:
    import pyarrow.parquet as pq

    files = Tables(lake).files("quarantine", workload=("=", workload))
    return sorted(row for file in files for row in pq.ParquetFile(file).read(["source_row"])["source_row"].to_pylist())


def test_a_second_machine_sees_tables_and_artefacts_and_fetches_large_files_when_they_are_read(machine):
    a = machine("a")
    Tables(a).append("quarantine", quarantined(1, 2))
    manifest = made(a)
    b = machine("b", create=False)
    assert b.root != a.root and rows_of(b) == [1, 2]
    registry = Registry(b, "tutor")
    assert registry.current("dataset", "sft_dataset") == manifest
    directory = b.root / "datasets" / "tutor" / "sft_dataset" / manifest.version
    assert (directory / "small.txt").exists() and not (directory / "large.bin").exists()
    assert registry.directory(manifest) == directory
    assert (directory / "large.bin").read_bytes() == LARGE and not changed_files(directory, manifest)
    Tables(b).replace("quarantine", quarantined(3), workload="w")
    assert rows_of(a) == rows_of(machine("c")) == [3]


def test_a_lake_is_created_once_and_only_in_an_empty_place_of_a_store_with_conditional_writes(machine, server, bucket):
    with pytest.raises(LakeError, match=f"no lake at s3://{bucket}/lakes/tutor: run a recipe with --lake"):
        machine("a", create=False)
    server.put(bucket, "lakes/tutor/notes.txt", b"mine")
    with pytest.raises(LakeError, match="is not empty and is no lake"):
        machine("a")
    server.delete(bucket, "lakes/tutor/notes.txt")
    server.fail("unconditional")
    with pytest.raises(
        LakeError, match=r"has no conditional writes .*If-None-Match and If-Match.*so two writers would lose rows"
    ):
        machine("a")
    assert server.names(bucket) == []
    server.heal()
    assert json.loads((machine("a").root / "lake.json").read_text()) == {"layout_version": 3}
    assert server.names(bucket) == ["lakes/tutor/lake.json"]
    server.fail("unconditional")  # a machine that comes later tries it too, before it writes
    with pytest.raises(LakeError, match="has no conditional writes"), at_work(machine("b")):
        raise AssertionError("it must not work")


def test_what_cannot_be_a_lake_is_refused_in_a_sentence(machine, server, bucket):
    for url, said in (
        ("s3://", "s3://BUCKET/PREFIX is expected"),
        (f"s3://{bucket}/a/../b", "is expected"),
        ("gs://bucket/x", "a lake is a local directory or s3://"),
        ("s3://no-such-bucket-here/x", "there is no bucket no-such-bucket-here"),
    ):
        with pytest.raises(LakeError, match=said):
            LakeLayout.open(url)
    machine("a")
    server.fail("deny", "GET")
    with pytest.raises(LakeError, match="access denied"):
        machine("a")
    server.heal()
    server.put(bucket, "lakes/tutor/lake.json", b'{"layout_version": 99}')
    with pytest.raises(LakeError, match=f"lake s3://{bucket}/lakes/tutor has layout version 99"):
        machine("b")


def test_an_artefact_appears_with_its_manifest_and_never_before(machine, server, bucket):
    a = machine("a")
    server.fail("deny", "PUT", "manifest.json")
    with pytest.raises(S3Error, match="access denied"):
        made(a)
    assert [name for name in server.names(bucket) if name.endswith("large.bin")]
    b = machine("b")
    assert not (b.root / "datasets").exists() and not Registry(b, "tutor").exists("dataset", "sft_dataset")
    server.heal()
    server.fail("deny", "PUT", "large.bin")  # it is not sent again
    manifest = made(machine("a"))
    assert Registry(machine("b"), "tutor").current("dataset", "sft_dataset") == manifest


def test_of_two_machines_that_make_the_same_version_one_counts_and_both_have_it(machine):
    a, b = machine("a"), machine("b")
    draft = Registry(b, "tutor").draft(
        "dataset", "sft_dataset", op="t", sources=("resources/lake/lake.py",), config={}, inputs=[]
    )
    (draft.directory / "large.bin").write_bytes(b"other bytes")
    first = made(a)
    second = Registry(b, "tutor").finish(draft, {})
    assert second == first and not changed_files(Registry(b, "tutor").directory(second), second)
    assert made(machine("b")) == first


def test_a_pointer_that_another_machine_moved_is_not_overwritten(machine):
    a = machine("a")
    made(a)
    b = machine("b")
    made(b, config={"of": "b"})
    with pytest.raises(ManifestError, match="another machine made another version of tutor/sft_dataset the current one"):
        made(a, config={"of": "a"})
    assert Registry(a, "tutor").current("dataset", "sft_dataset").config == {"of": "b"}
    made(machine("a"), config={"of": "a"})
    assert Registry(b, "tutor").current("dataset", "sft_dataset").config == {"of": "a"}


def test_files_here_that_were_not_published_survive_a_pull_and_are_published_later(machine):
    a, b = machine("a"), machine("b")
    with at_work(a), AnswerStore(a.root / "answers" / "tutor.jsonl") as kept:
        kept.keep("of-a", StoredAnswer("m", {"content": "a"}, "", "stop", 1, 1, 0.5))
    with at_work(b):
        b.mirror.fetch(b.root / "answers")
        with AnswerStore(b.root / "answers" / "tutor.jsonl") as kept:
            assert kept.find("of-a").cost == 0.5
            kept.keep("of-b", StoredAnswer("m", {"content": "b"}, "", "stop", 1, 1, 0.25))
            with at_work(a), AnswerStore(a.root / "answers" / "tutor.jsonl") as others:
                others.keep("of-a-too", StoredAnswer("m", {"content": "c"}, "", "stop", 1, 1, 0.125))
            b.mirror.pull()
            assert kept.find("of-b") is not None
    c = machine("c")
    c.mirror.fetch(c.root / "answers")
    with AnswerStore(c.root / "answers" / "tutor.jsonl") as kept:
        assert kept.cost_of(["of-a", "of-b", "of-a-too"]) == 0.875


def test_removed_versions_go_everywhere(machine, server, bucket):
    a = machine("a")
    old, new = made(a, config={"n": 1}), made(a, config={"n": 2})
    b = machine("b")
    Registry(b, "tutor").directory(old)
    a.mirror.remove(a.root / "datasets" / "tutor" / "sft_dataset" / old.version)
    b.mirror.pull()
    assert [path.name for path in (b.root / "datasets" / "tutor" / "sft_dataset").iterdir() if path.is_dir()] == [new.version]
    assert not [name for name in server.names(bucket) if old.version in name]


def test_a_lost_answer_neither_loses_nor_doubles_a_commit(machine, server):
    a = machine("a")
    Tables(a).append("quarantine", quarantined(1))
    server.fail("lose", "PUT", "/_delta_log/", times=1)
    Tables(a).append("quarantine", quarantined(2))
    server.heal()
    assert rows_of(a) == rows_of(machine("b")) == [1, 2]


def test_a_lost_answer_counts_as_written_for_small_files(machine, server):
    a = machine("a")
    server.fail("lose", "PUT", "current.json", times=1)
    manifest = made(a)
    assert Registry(machine("b"), "tutor").current("dataset", "sft_dataset") == manifest


def test_runs_of_two_machines_share_the_lake_and_an_erasure_is_told_who_works(machine, monkeypatch):
    a, b = machine("a"), machine("b")
    c = machine("c")
    with (
        at_work(a),
        at_work(b),
        pytest.raises(LakeInUse, match=r"a run is at work on s3://.*\(process \d+ on "),
        alone(c, "forget"),
    ):
        raise AssertionError("it must not be held")
    waited = []
    with alone(a, "forget"):
        from stores.mirror import leases

        def enough(seconds):
            raise TimeoutError

        monkeypatch.setattr(leases.time, "sleep", enough)
        with pytest.raises(TimeoutError), b.mirror.at_work(waited.append):
            raise AssertionError("it must wait")
    assert len(waited) == 1
    with alone(b, "forget"):
        pass


def test_the_lease_of_a_killed_process_counts_no_more_after_a_while(machine, server, bucket, monkeypatch):
    from stores.mirror import leases

    a = machine("a")
    server.put(bucket, "lakes/tutor/leases/work.json", b'{"host": "gone", "process": 7}')
    waited = []
    monkeypatch.setattr(leases.time, "sleep", lambda seconds: monkeypatch.setattr(leases, "EXPIRE_S", -1.0))
    with a.mirror.at_work(waited.append):
        assert waited == ["process 7 on gone"]
    with leases.exclusive(a.mirror.bucket, "work"):  # takes it over
        assert (
            json.loads(server.client.get_object(Bucket=bucket, Key="lakes/tutor/leases/work.json")["Body"].read())["host"]
            != "gone"
        )


def test_a_mirror_stays_within_its_budget(machine, monkeypatch):
    a = machine("a")
    manifests = [made(a, config={"n": n}, content=os.urandom(400_000)) for n in range(4)]
    monkeypatch.setattr(mirrors, "hold", lambda directory: None)  # as in processes that have ended
    b = machine("b")
    registry = Registry(b, "tutor")
    monkeypatch.setenv("MILLRACE_MIRROR_GIB", str(1_000_000 / 2**30))
    for manifest in manifests:
        registry.directory(manifest)
    there = list(b.root.rglob("large.bin"))
    assert len(there) == 2 and (registry.directory(manifests[3]) / "large.bin") in there
    b.mirror.pull()  # what was dropped is fetched again when it is needed, and was removed from nowhere
    assert not changed_files(registry.directory(manifests[0]), manifests[0])
    monkeypatch.setenv("MILLRACE_MIRROR_GIB", str(100_000 / 2**30))
    with pytest.raises(LakeError, match=r"has room for 0\.0 GiB .*MILLRACE_MIRROR_GIB"):
        registry.directory(manifests[1])
    monkeypatch.setenv("MILLRACE_MIRROR_GIB", "much")
    with pytest.raises(LakeError, match="MILLRACE_MIRROR_GIB=much: give a number of GiB"):
        registry.directory(manifests[1])


def test_keys_are_written_nowhere(machine, server):
    a = machine("a")
    Tables(a).append("quarantine", quarantined(1))
    made(a)
    with at_work(a):
        pass
    secret = server.environment["AWS_SECRET_ACCESS_KEY"].encode()
    files = [path for path in a.root.rglob("*") if path.is_file()]
    assert files and not [path for path in files if secret in path.read_bytes()]


def test_a_table_is_read_on_after_another_machine_shortened_its_log(machine):
    a, b = machine("a"), machine("b")
    Tables(a).append("quarantine", quarantined(1))
    assert rows_of(b) == [1]
    remove_old_files(a)
    assert rows_of(b) == [1]
    Tables(b).append("quarantine", quarantined(2))
    assert rows_of(a) == rows_of(b) == [1, 2]


def test_what_another_process_publishes_during_a_pull_stays(machine, monkeypatch):
    a, other_process = machine("a"), machine("a")
    made(a, config={"n": 1})
    listing = type(a.mirror.bucket).objects
    later = []

    def slow(bucket, *where):
        found = list(listing(bucket, *where))
        if not later:
            later.append(None)
            later.append(made(other_process, config={"n": 2}))
        return iter(found)

    with monkeypatch.context() as patch:
        patch.setattr(type(a.mirror.bucket), "objects", slow)
        a.mirror.pull()
    place = a.root / "datasets" / "tutor" / "sft_dataset" / later[1].version
    assert not changed_files(place, later[1]) and Registry(a, "tutor").current("dataset", "sft_dataset") == later[1]


def test_the_fingerprint_of_the_hash_key_is_known_on_every_machine(machine, monkeypatch):
    a, b = machine("a"), machine("b")
    monkeypatch.setenv(USER_HASH_KEY, "k1")
    keep_key(Tables(a))
    add_tombstones(Tables(a), ["0" * 64])
    assert machine("c").key_check == key_check("k1")
    monkeypatch.setenv(USER_HASH_KEY, "k2")
    with pytest.raises(LakeError, match="another MILLRACE_USER_HASH_KEY"):
        keep_key(Tables(machine("b")))
    assert b.key_check == key_check("k1")
