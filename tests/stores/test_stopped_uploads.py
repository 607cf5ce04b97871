"""Uploads that were stopped, and versions that two machines made: no file is lost, and what the bucket has finished counts."""

import os

import pytest
from made_versions import LARGE, made

from resources.artefacts.registry import Registry
from resources.lake.lake import LakeError
from resources.lake.lake_use import alone, at_work
from resources.manifests.manifest import changed_files
from stores.in_use import hold, let_go
from stores.mirror import mirror as mirrors
from stores.s3 import S3Error

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("stopped uploads")]


@pytest.fixture
def stopped(machine, server):
    """A machine whose upload of a version was stopped before the manifest, and the version's directory there."""
    a = machine("a")
    server.fail("deny", "PUT", "manifest.json")
    with pytest.raises(S3Error, match="access denied"):
        made(a)
    server.heal()
    [manifest] = (a.root / "datasets").rglob("manifest.json")
    return machine("a"), manifest.parent


def is_whole_for(lake):
    manifest = Registry(lake, "tutor").current("dataset", "sft_dataset")
    return not changed_files(Registry(lake, "tutor").directory(manifest), manifest)


def test_what_was_uploaded_in_part_and_removed_from_the_bucket_is_uploaded_again(stopped, machine, server, bucket):
    a, directory = stopped
    machine("b").mirror.remove_unfinished(-60)
    assert not [name for name in server.names(bucket) if directory.name in name]
    a.mirror.pull()
    assert (directory / "large.bin").read_bytes() == LARGE and (directory / "small.txt").exists()
    made(a)
    assert is_whole_for(machine("c"))


def test_what_this_machine_itself_removed_as_unfinished_is_uploaded_with_its_manifest(stopped, machine):
    a, directory = stopped
    with alone(a, "retain"):
        a.mirror.remove_unfinished(-60)
    b = machine("b")
    assert sorted(path.name for path in (b.root / directory.relative_to(a.root)).iterdir()) == ["manifest.json", "small.txt"]
    b.mirror.fetch(b.root / "datasets")
    assert (b.root / directory.relative_to(a.root) / "large.bin").read_bytes() == LARGE


def test_what_another_machine_removes_after_the_pull_is_uploaded_with_its_manifest(stopped, machine):
    a = stopped[0]
    machine("b").mirror.remove_unfinished(-60)
    a.mirror.push()
    made(a)
    assert is_whole_for(machine("c"))


def test_an_upload_is_not_removed_while_it_goes_on(stopped, machine, server, bucket, monkeypatch):
    a, b = stopped[0], machine("b")
    upload = type(a.mirror)._require_files

    def meanwhile(mirror, version):
        b.mirror.remove_unfinished(-60)
        upload(mirror, version)

    monkeypatch.setattr(type(a.mirror), "_require_files", meanwhile)
    made(a)
    assert is_whole_for(machine("c"))


def test_a_version_is_not_published_without_one_of_its_files(stopped, machine, server, bucket):
    a, directory = stopped
    (directory / "large.bin").unlink()
    server.delete(bucket, f"lakes/tutor/{directory.relative_to(a.root)}/large.bin")
    with pytest.raises(
        LakeError, match=r"large\.bin is neither in s3://.* nor whole on this machine, .*remove /.*run the recipe"
    ):
        made(a)
    assert not [name for name in server.names(bucket) if name.endswith("manifest.json")]


def test_files_of_a_stopped_upload_are_not_dropped_for_room(stopped, machine, monkeypatch):
    a, directory = stopped
    other = made(machine("b"), config={"other": 1}, content=os.urandom(400_000))
    a.mirror.pull()
    let_go(directory)
    monkeypatch.setenv("MILLRACE_MIRROR_GIB", str(600_000 / 2**30))
    with pytest.raises(LakeError, match="MILLRACE_MIRROR_GIB"):
        Registry(a, "tutor").directory(other)
    assert (directory / "large.bin").exists()


def test_a_finished_version_of_the_bucket_replaces_an_unfinished_one_here_unless_a_process_works_in_it(machine):
    a, b = machine("a"), machine("b")
    manifest = made(a)
    directory = b.root / "datasets" / "tutor" / "sft_dataset" / manifest.version
    directory.mkdir(parents=True)
    (directory / "large.bin").write_bytes(b"half")
    (directory / ".work").mkdir()
    hold(directory)
    b.mirror.pull()
    assert (directory / "large.bin").read_bytes() == b"half" and not (directory / "manifest.json").exists()
    with alone(b, "forget"):  # an erasure has to see every version
        assert (directory / "manifest.json").exists() and not (directory / "large.bin").exists()
    let_go(directory)
    assert is_whole_for(b)

    c = machine("c")
    directory = c.root / directory.relative_to(b.root)
    for path in directory.iterdir():
        path.unlink()
    c.mirror.known.forget(c.mirror.known.of("datasets/"))
    (directory / "large.bin").write_bytes(b"half")
    (directory / ".work").mkdir()
    c.mirror.pull()
    assert is_whole_for(c) and not (directory / ".work").exists()


def test_of_a_version_that_was_finished_here_and_elsewhere_the_bucket_has_the_one_that_an_erasure_sees(stopped, machine):
    a, directory = stopped
    made(machine("b"), content=b"of b" * 100_000)
    with alone(machine("a"), "forget"):
        a.mirror.fetch(a.root / "datasets")
        assert (directory / "large.bin").read_bytes() == b"of b" * 100_000


def test_an_erasure_is_refused_where_a_version_cannot_be_brought(machine, monkeypatch):
    made(machine("a"))
    b = machine("b")
    with monkeypatch.context() as patch:
        patch.setattr(mirrors.Mirror, "pull", lambda *args, **words: None)
        [manifest] = (b.root / "datasets").rglob("manifest.json")
        manifest.unlink()
        with (
            pytest.raises(LakeError, match="cannot be brought to this machine, so its rows would be missed: remove"),
            alone(b, "x"),
        ):
            raise AssertionError("it must not be held")
    with alone(b, "forget"):
        assert manifest.exists()


def test_what_a_killed_erasure_rewrote_here_gives_way_to_the_completed_one(machine, server, bucket):
    a, b = machine("a"), machine("b")
    manifest = made(a)
    b.mirror.pull()
    b.mirror.fetch(b.root / "datasets")
    place = f"datasets/tutor/sft_dataset/{manifest.version}"
    for lake, content in ((b, b"killed"), (a, b"completed")):
        (lake.root / place / "large.bin").write_bytes(content * 50_000)
        (lake.root / place / "small.txt").write_bytes(content)
    a.mirror.push()
    with at_work(b):
        assert (b.root / place / "small.txt").read_bytes() == b"completed"
    b.mirror.fetch(b.root / "datasets")
    assert (b.root / place / "large.bin").read_bytes() == b"completed" * 50_000


def test_after_a_lost_race_for_a_pointer_the_next_command_of_the_machine_works(machine):
    a = machine("a")
    first = made(a, config={"n": 1})
    made(a, config={"n": 2})
    b = machine("b")
    pointer = "datasets/tutor/sft_dataset/current.json"
    with pytest.raises(LakeError, match=r"another machine changed datasets/tutor/sft_dataset/current\.json"), at_work(b):
        (b.root / pointer).write_text(f'{{"version": "{first.version}" }}')
        (a.root / pointer).write_text(f'{{"version": "{first.version}"}}')
        a.mirror.publish(a.root / pointer)
    with at_work(b):
        assert (b.root / pointer).read_text() == (a.root / pointer).read_text()


def test_a_pull_goes_on_when_a_listed_object_is_removed(machine, server, bucket, monkeypatch):
    a, b = machine("a"), machine("b")
    old = made(a, config={"n": 1})
    made(a, config={"n": 2})
    listing, places = type(b.mirror.bucket).objects, [a.root / "datasets" / "tutor" / "sft_dataset" / old.version]

    def late(where, *under):
        found = list(listing(where, *under))
        if places:
            a.mirror.remove(places.pop())
        return iter(found)

    monkeypatch.setattr(type(b.mirror.bucket), "objects", late)
    b.mirror.pull()
    assert is_whole_for(b) and not list((b.root / "datasets" / "tutor" / "sft_dataset" / old.version).glob("*"))
