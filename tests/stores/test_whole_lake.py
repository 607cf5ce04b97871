"""A whole lake in a bucket, from logs to a release: asked, erased, copied and approved from several machines."""

import json
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.lake_bytes import places_of
from pipelines.rebuilding.copies import copy_artefact, sentences
from resources.artefacts.registry import Registry
from resources.catalog.catalog import lineage_of, query
from resources.endpoints.approvals import recheck
from resources.endpoints.endpoint_log import Actor, EndpointLogError
from resources.endpoints.endpoints import Endpoint
from resources.erasing.erasure import complete_unfinished, forget
from resources.erasing.journal import ask_for
from resources.lake.lake import LakeError, LakeLayout
from resources.lake.tables import Tables
from resources.manifests.manifest import ManifestError, changed_files, read_manifest
from resources.releases.release import ReleaseRef

sys.path.insert(0, str(Path(__file__).parents[1] / "resources" / "erasing"))
from filled_lake import MARK, filled, write_logs

BY = Actor("tester", "test", "request 1")


pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("whole_lake")]


@pytest.fixture(scope="module")
def objects(server, tmp_path_factory):
    """Every object of a filled lake, by its key."""
    home = tmp_path_factory.mktemp("whole")
    write_logs(home / "logs")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**server.environment, "MILLRACE_MIRRORS": str(home / "mirrors")}.items():
            patch.setenv(name, value)
        server.bucket("filled")
        lake = filled("s3://filled/lakes/tutor", home / "logs")
        lake.mirror.push()
    return {name: server.client.get_object(Bucket="filled", Key=name)["Body"].read() for name in server.names("filled")}


@pytest.fixture
def lakes(machine, server, bucket, objects):
    """The lake as two machines see it."""
    for name, content in objects.items():
        server.put(bucket, name, content)
    return machine("a", create=False), machine("b", create=False)


def downloaded(server, bucket, to):
    for name in server.names(bucket):
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(server.client.get_object(Bucket=bucket, Key=name)["Body"].read())
    return to


def test_another_machine_asks_in_sql_copies_and_verifies(lakes, tmp_path):
    a, b = lakes
    asked = "select count(*) as n from interactions"
    assert query(b, asked).to_pylist() == query(a, asked).to_pylist() == [{"n": 14}]
    assert lineage_of(b, "tutor/release").num_rows == lineage_of(a, "tutor/release").num_rows > 3
    release = Registry(b, "tutor").current("release", "release")
    problems = recheck(a, Registry(a, "tutor").directory(release))
    assert (
        recheck(b, Registry(b, "tutor").directory(release))
        == problems
        == [f"release {release.version} names no evaluation report: nothing says what was measured"]
    )

    there = LakeLayout.open(tmp_path / "elsewhere")
    copied = copy_artefact(b, "tutor/release", there)
    assert len(copied.whole) == 2 and copied.manifests >= 2 and copied.current == ["tutor/sft_model", "tutor/release"]
    directory = Registry(there, "tutor").directory(Registry(there, "tutor").current("release", "release"))
    assert recheck(there, directory) == problems and read_manifest(directory) == release
    assert lineage_of(there, "tutor/release")["parent"].to_pylist() == lineage_of(b, "tutor/release")["parent"].to_pylist()
    again = copy_artefact(b, "tutor/release", there)
    assert again.whole == [] and again.files == 0 and len(again.there) == 2
    assert any("in " in sentence and "already" in sentence for sentence in sentences(again, there))
    [dataset] = [path.parent for path in (there.root / "datasets/tutor/sft_dataset").glob("*/manifest.json")]
    with pytest.raises(ManifestError, match=r"has only the manifest of tutor/sft_dataset@.*copy it from the lake that"):
        copy_artefact(there, f"tutor/sft_dataset@{dataset.name}", LakeLayout.open(tmp_path / "third"))
    with pytest.raises(LakeError, match="name another lake to copy it to"):
        copy_artefact(b, "tutor/release", b)
    whole = copy_artefact(b, "tutor/sft_dataset", there)  # where only the manifest was
    assert len(whole.whole) == 1 and not changed_files(dataset, read_manifest(dataset))


def test_a_changed_file_is_not_copied(lakes, machine, bucket):
    a, _ = lakes
    model = Registry(a, "tutor").current("model", "sft_model")
    (Registry(a, "tutor").directory(model) / "model.safetensors").write_bytes(b"weighty")
    to = LakeLayout.open(f"s3://{bucket}/second")
    with pytest.raises(ManifestError, match=r"model.safetensors is not the file that the manifest of tutor/sft_model@"):
        copy_artefact(a, "tutor/release", to)
    assert not (to.root / "releases").exists()
    (Registry(a, "tutor").directory(model) / "model.safetensors").write_bytes(b"weights")
    copied = copy_artefact(a, "tutor/release", to)
    assert len(copied.whole) == 2
    machine("c")
    seen = Registry(LakeLayout.open(f"s3://{bucket}/second"), "tutor")
    release = seen.current("release", "release")
    assert not changed_files(seen.directory(release), release)


def test_an_erasure_on_one_machine_leaves_no_byte_in_the_bucket_nor_on_another(lakes, server, bucket, tmp_path):
    a, b = lakes
    b.mirror.fetch(b.root / "datasets")
    Tables(b).files("interactions")
    assert places_of({MARK}, b.root) and places_of({MARK}, downloaded(server, bucket, tmp_path / "before"))
    plan = forget(a, ask_for(Tables(a), "user", "ann"), BY, vacuum=True)
    assert plan.interactions == 4
    assert places_of({MARK}, downloaded(server, bucket, tmp_path / "after")) == []
    assert places_of({MARK}, a.root) == []
    b.mirror.pull()
    assert places_of({MARK}, b.root) == []
    assert query(b, "select count(*) as n from interactions").to_pylist() == [{"n": 10}]


def test_a_bucket_that_denies_deletes_is_named_and_a_second_try_completes_the_erasure(lakes, server, bucket, tmp_path):
    a, b = lakes
    asked = ask_for(Tables(a), "user", "ann")
    server.fail("deny", "DELETE", "/tables/")
    with pytest.raises((LakeError, OSError), match=f"s3://{bucket}/lakes/tutor/tables/.*delete"):
        forget(a, asked, BY, vacuum=True)
    server.heal()
    b.mirror.pull()
    assert complete_unfinished(b) == 1  # on whichever machine comes next
    assert places_of({MARK}, downloaded(server, bucket, tmp_path / "after")) == []


def test_of_changes_of_one_endpoint_on_several_machines_none_is_lost(machine, server, bucket):
    lakes = [machine(name) for name in "abc"]

    def change(lake, name):
        for number in range(4):
            while True:
                try:
                    Endpoint(lake, "tutor").promote(ReleaseRef(version=f"{name}{number}", digest="d"), BY)
                    break
                except EndpointLogError as error:
                    assert "another machine changed the endpoint meanwhile; try again" in str(error)

    threads = [threading.Thread(target=change, args=(lake, name)) for lake, name in zip(lakes, "abc", strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = Endpoint(machine("d"), "tutor").entries()
    assert [entry.generation for entry in entries] == list(range(1, 13))
    assert {entry.release for entry in entries} == {f"{name}{number}" for name in "abc" for number in range(4)}
    served = json.loads(server.client.get_object(Bucket=bucket, Key="lakes/tutor/endpoints/tutor.json")["Body"].read())
    assert served["champion"] == entries[-1].release and served["generation"] == 12
    assert Endpoint(lakes[0], "tutor").problems() == []
