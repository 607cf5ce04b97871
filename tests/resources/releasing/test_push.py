"""Pushing a release to the Hub and to a bucket: order, what is sent again, what a stopped push leaves, refusals."""

import hashlib
import shutil
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

sys.path.insert(0, str(Path(__file__).parent))
from stand_in_hub import stand_in_hub

from resources.lake.lake import LakeLayout
from resources.releases.release import ReleaseError
from resources.releasing.push import destination_of, etag_of, push_release


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


@pytest.fixture
def release(lake, make_release):
    return make_release(lake, 1, drafts=True)


@pytest.fixture
def online(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the tests set it


@pytest.fixture
def hub(online, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the stand-in has no store of that protocol
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with stand_in_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def test_the_hub_gets_weights_first_and_the_manifest_last(hub, lake, release):
    pushed = push_release(lake, release, "hf://company/tutor")
    manifest = f"releases/tutor/{release.name}/manifest.json"
    assert [message.split(":")[1].split(" of ")[0].strip() for message, _ in hub.commits] == ["weights", "files", "manifest"]
    assert all(path.endswith(".safetensors") for path in hub.commits[0][1]) and len(hub.commits[0][1]) == 2
    assert hub.commits[-1][1] == [manifest] and hub.created[0]["visibility"] == "private" and hub.tokens == {"hf_secret"}
    for path, (content, _) in hub.files.items():
        assert content == (lake.root / path).read_bytes()
    assert {
        f"releases/tutor/{release.name}/serve-vllm.sh",
        f"models/tutor/speculator/{_version(lake, 'speculator')}/config.json",
    } <= set(hub.files)
    assert pushed.files == len(hub.files) and pushed.there == 0 and not pushed.signed
    assert pushed.bytes == sum(len(content) for content, _ in hub.files.values())


def _version(lake, name):
    return next((lake.root / "models/tutor" / name).glob("*/manifest.json")).parent.name


def test_a_second_push_sends_nothing(hub, lake, release):
    first = push_release(lake, release, "hf://company/tutor")
    again = push_release(lake, release, "hf://company/tutor")
    assert (again.files, again.bytes, again.there) == (0, 0, first.files) and len(hub.commits) == 3


def test_a_stopped_push_continues_and_leaves_no_manifest(hub, lake, release):
    hub.fails_after = 2  # both models have weights of the same content: the failure is among the other files
    with pytest.raises(ReleaseError, match=r"the Hub refuses the push to company/tutor \(status 400\)"):
        push_release(lake, release, "hf://company/tutor")
    assert not any(path.endswith(f"{release.name}/manifest.json") for path in hub.files)
    hub.fails_after, before = None, len(hub.uploads)
    push_release(lake, release, "hf://company/tutor")
    assert f"releases/tutor/{release.name}/manifest.json" in hub.files
    assert len(hub.uploads) == len(hub.large) and before == 2  # nothing was uploaded twice


def test_a_changed_release_is_not_pushed(hub, lake, release):
    (release / "serve-vllm.sh").write_text("exit 1")
    with pytest.raises(ReleaseError, match=r"is not pushed: .*serve-vllm.sh changed"):
        push_release(lake, release, "hf://company/tutor")
    assert not hub.commits


def test_a_token_that_the_hub_does_not_take_is_not_shown(hub, lake, release, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ReleaseError, match="HF_TOKEN is not valid") as refused:
        push_release(lake, release, "hf://company/tutor")
    assert "hf_wrong" not in str(refused.value)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ReleaseError, match="set HF_TOKEN"):
        push_release(lake, release, "hf://company/tutor")


def test_a_hub_that_does_not_answer_is_one_sentence(online, lake, release, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ReleaseError, match=r"the Hub cannot be reached \(.*\): push again later"):
        push_release(lake, release, "hf://company/tutor")


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("hf://tutor", "names no repository"),
        ("hf://a/b/c", "names no repository"),
        ("s3://bucket", "names no prefix"),
        ("s3://bucket/", "names no prefix"),
        ("gs://bucket/a", "no place to push to"),
        ("/tmp/a", "no place to push to"),
    ],
)
def test_other_places_are_refused(to, said, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with pytest.raises(ReleaseError, match=said):
        destination_of(to)


@pytest.mark.parametrize("size", [0, 5, 127, 128, 129, 400])
def test_the_etag_is_that_of_the_parts_in_which_a_file_is_sent(tmp_path, monkeypatch, size):
    from resources.releasing import push as s3_prefix

    monkeypatch.setattr(s3_prefix, "PART_BYTES", 64)
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda size, chunksize: chunksize)
    file = tmp_path / "f"
    file.write_bytes(b"x" * size)
    parts = [b"x" * min(64, size - start) for start in range(0, size, 64)]
    expected = (
        hashlib.md5(b"x" * size).hexdigest()
        if size < 128
        else hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest() + f"-{len(parts)}"
    )
    assert etag_of(file) == expected


class Store:
    """A bucket that only remembers, so that a fast test needs no server."""

    def __init__(self):
        self.objects_of, self.calls, self.stops_after = {}, [], None

    def objects(self):
        from stores.s3 import ObjectEntry

        return [
            ObjectEntry(path, len(content), f'"{hashlib.md5(content).hexdigest()}"', None)
            for path, content in self.objects_of.items()
        ]

    def upload(self, files):
        if self.stops_after is not None and len(self.calls) >= self.stops_after:
            raise OSError("stopped")
        self.calls.append([path for path, _ in files])
        self.objects_of |= {path: file.read_bytes() for path, file in files}


def test_a_bucket_gets_weights_first_and_the_manifest_last_and_continues(lake, release, monkeypatch):
    from resources.releasing import push

    store = Store()
    monkeypatch.setattr(push, "destination_of", lambda to: push.S3Prefix(store))
    store.stops_after = 2
    with pytest.raises(OSError, match="stopped"):
        push_release(lake, release, "s3://company/releases")
    manifest = f"releases/tutor/{release.name}/manifest.json"
    assert manifest not in store.objects_of and all(path.endswith(".safetensors") for path in store.calls[0])
    store.stops_after = None
    push_release(lake, release, "s3://company/releases")
    assert store.calls[2:] == [[manifest]]
    assert push_release(lake, release, "s3://company/releases").files == 0


@pytest.mark.slow
def test_a_pushed_release_is_a_release_in_a_real_bucket(lake, release, monkeypatch, tmp_path):
    """Against a local S3 server: the objects are the files, and a second push sends nothing."""
    from benchmarks.s3_server import s3_server
    from stores.mirror.bucket import Bucket

    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        server.bucket("company")
        sent = push_release(lake, release, "s3://company/releases/tutor")
        bucket = Bucket("s3://company/releases/tutor")
        paths = [item.key for item in bucket.objects()]
        assert len(paths) == sent.files and f"releases/tutor/{release.name}/manifest.json" in paths
        bucket.download([(path, tmp_path / "copy" / path) for path in paths], lambda *_: None)
        assert all((tmp_path / "copy" / path).read_bytes() == (lake.root / path).read_bytes() for path in paths)
        assert push_release(lake, release, "s3://company/releases/tutor").files == 0
        shutil.rmtree(tmp_path / "copy")
