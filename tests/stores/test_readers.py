"""A machine that only reads writes nothing to the bucket, and an erasure reaches what other machines made or did not
publish."""

import json
import logging
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from made_versions import made
from test_mirror import quarantined

from resources.artefacts.registry import Registry
from resources.catalog.build import publish
from resources.catalog.catalog import query
from resources.erasing.erasure import _fetch_rows
from resources.lake.lake import LakeError
from resources.lake.lake_use import alone, at_work
from resources.lake.tables import SCHEMAS, Tables
from resources.manifests.erased import ELSEWHERE
from stores.mirror.bucket import Conflict
from stores.mirror.layout import MANIFEST_ALONE
from stores.s3 import S3Error

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("readers")]

REPORT = b"a page of text\n" * 20_000


def test_a_machine_that_may_only_read_asks_in_sql_and_reads_artefacts(machine, server, bucket):
    a = machine("a")
    Tables(a).append("quarantine", quarantined(1, 2))
    manifest = made(a)
    publish(a)
    Tables(a).append("quarantine", quarantined(3))
    before = server.names(bucket)
    server.fail("deny", "PUT")
    b = machine("b", create=False)
    assert query(b, "select count(*) as n from quarantine").to_pylist() == [{"n": 3}]
    assert query(b, "select version from datasets").to_pylist() == [{"version": manifest.version}]
    assert (Registry(b, "tutor").directory(manifest) / "large.bin").exists()
    with pytest.raises(S3Error, match=r"access denied .*write its objects"), at_work(b):
        raise AssertionError("it must not work")
    server.heal()
    assert server.names(bucket) == before


def test_the_catalog_in_the_bucket_is_that_of_the_last_writer(machine, server, bucket):
    a = machine("a")
    publish(a)
    Tables(a).append("quarantine", quarantined(1))
    query(a, "select 1")  # brings the catalog of this machine up to date, and publishes nothing
    first = a.mirror.bucket.etag("catalog.duckdb")
    publish(a)
    assert a.mirror.bucket.etag("catalog.duckdb") != first


def test_an_erasure_searches_large_pages_that_another_machine_made(machine):
    a = machine("a")
    found = {}
    for kind, name in (("release", "release"), ("model", "sft_model")):
        registry = Registry(a, "tutor")
        draft = registry.draft(kind, name, op="t", sources=("resources/lake/lake.py",), config={}, inputs=[])
        for file in ("report.md", "model.safetensors", "model.gguf"):
            (draft.directory / file).write_bytes(REPORT)
        registry.finish(draft, {})
        found[kind] = draft.directory.relative_to(a.root)
    (a.root / "endpoints").mkdir()
    (a.root / "endpoints" / "notes.json").write_text(json.dumps({"note": "x" * 300_000}))
    a.mirror.push()
    b = machine("b")
    _fetch_rows(b)
    assert (b.root / "endpoints" / "notes.json").exists()
    for place in found.values():
        assert sorted(path.name for path in (b.root / place).iterdir()) == ["manifest.json", "report.md"]


def test_objects_that_were_removed_meanwhile_are_told_in_a_sentence(machine, server, bucket):
    a = machine("a")
    etag = a.mirror.bucket.put("endpoints/x.json", b"1", None)
    a.mirror.bucket.delete(["endpoints/x.json"])
    with pytest.raises(Conflict):
        a.mirror.bucket.put("endpoints/x.json", b"2", etag)
    made(a)
    b = machine("b")
    [large] = [name for name in server.names(bucket) if name.endswith("large.bin")]
    server.delete(bucket, large)
    with pytest.raises(LakeError, match=r"another machine removed files of s3://.* meanwhile: run the command again"):
        b.mirror.fetch(b.root / "datasets")


def erased(lake, at):
    Tables(lake).append(
        "erasures",
        pa.Table.from_pylist(
            [{"workload": "", "kind": "user", "sha256": "0", "ts": at, "erasure": "e"}], schema=SCHEMAS["erasures"]
        ),
    )


@pytest.mark.parametrize("kind", ["dataset", "model"])
def test_a_dataset_that_was_not_published_before_an_erasure_is_not_published_after_it(machine, server, kind, caplog):
    a, b = machine("a"), machine("b")
    server.fail("deny", "PUT", "manifest.json")
    with pytest.raises(S3Error, match="access denied"):
        made(b, kind=kind, name="x")
    server.heal()
    with alone(a, "forget"):
        erased(a, datetime.now(UTC))
    caplog.set_level(logging.WARNING)
    with at_work(b):
        pass
    assert ("not published before rows were erased on another machine" in caplog.text) == (kind == "dataset")
    a.mirror.pull()
    assert len(list(a.root.glob(f"{kind}s/tutor/x/*/manifest.json"))) == (kind == "model")
    with at_work(b):
        made(b, kind=kind, name="x", config={"after": 1})
    a.mirror.pull()
    assert len(list(a.root.glob(f"{kind}s/tutor/x/*/manifest.json"))) == 1 + (kind == "model")


def test_answers_that_were_not_published_before_an_erasure_are_not_published_after_it(machine):
    from test_paid_answers import keep, kept, names_in

    a, b = machine("a"), machine("b")
    with kept(b) as of_b:
        keep(of_b, "a")
        b.mirror.push()
        keep(of_b, "b")
    with alone(a, "forget"):
        erased(a, datetime.now(UTC) - timedelta(hours=1))
    with at_work(b):
        pass
    assert names_in(a) == {"a", "b"}  # given after the erasure
    with kept(b) as of_b:
        keep(of_b, "c")
    with alone(a, "forget"):
        erased(a, datetime.now(UTC))
    with at_work(b):
        pass
    assert names_in(a) == names_in(b) == {"a", "b"}


def test_vectors_of_prompts_that_an_earlier_version_left_do_not_stay(machine):
    b = machine("b")
    (b.root / ".remembered" / "embeddings" / "tutor").mkdir(parents=True)
    with at_work(b):
        assert not (b.root / ".remembered" / "embeddings").exists()


def test_a_manifest_without_its_files_is_known_by_one_name():
    assert MANIFEST_ALONE == ELSEWHERE
