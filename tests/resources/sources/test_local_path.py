"""One spelling for every local place, and remote uris left as they are."""

from pathlib import Path

import pytest

from resources.sources.local_paths import absolute_uri, is_local, local_path, plain_path
from resources.sources.sources import SourceError, SourceSettings, list_objects


@pytest.fixture
def home(tmp_path, monkeypatch):
    (tmp_path / "logs/a b").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    for name in ("logs/a b/x.jsonl", "logs/100%25.jsonl", "logs/e\u0301.jsonl", "logs/[1].jsonl", "other/y.jsonl"):
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "link").symlink_to("logs")
    (tmp_path / "other/deep").symlink_to(tmp_path / "logs/a b")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("uri, meant", [
    ("logs", "logs"),
    ("./logs/", "logs"),
    ("other/../logs//a b", "logs/a b"),
    ("~/logs", "logs"),
    ("~nobody-here/x", "~nobody-here/x"),
    ("link/a b", "logs/a b"),
    ("other/deep/../[1].jsonl", "logs/[1].jsonl"),
    ("file://{}/logs/a%20b", "logs/a b"),
    ("file:{}/logs", "logs"),
    ("FILE://localhost{}/logs", "logs"),
    ("file://{}/logs/a b", "logs/a b"),
    ("file://./logs", "logs"),
    ("file://{}/logs/100%25.jsonl", "logs/100%25.jsonl"),
    ("file://{}/logs/100%2525.jsonl", "logs/100%25.jsonl"),
    ("logs/100%25.jsonl", "logs/100%25.jsonl"),
    ("logs/\u00e9.jsonl", "logs/e\u0301.jsonl"),
    ("link/*/x.jsonl", "logs/*/x.jsonl"),
    ("other/../link/**/*.jsonl", "logs/**/*.jsonl"),
    ("link/[1].jsonl", "logs/[1].jsonl"),
    ("missing/../gone", "gone"),
])  # fmt: skip
def test_every_spelling_is_one_place(home, uri, meant):
    assert local_path(uri.format(home)) == str(home / meant)
    assert absolute_uri(absolute_uri(uri.format(home))) == str(home / meant)


def test_relative_paths_are_those_of_the_recipes_folder(home):
    assert absolute_uri("../logs", home / "other") == absolute_uri("file://../logs", home / "other") == str(home / "logs")
    assert plain_path("link/../link/./x") == str(home / "link/x")


@pytest.mark.parametrize("uri, listed", [
    ("s3a://logs/x/", "s3://logs/x/"),
    ("S3://Logs//x/../%20é", "s3://Logs//x/../%20é"),
    ("https://host/a%20b", "https://host/a%20b"),
    ("simplecache::s3://logs/x", "simplecache::s3://logs/x"),
])  # fmt: skip
def test_remote_uris_keep_their_keys(uri, listed):
    assert local_path(uri) is None and not is_local(uri) and absolute_uri(uri, Path("/srv")) == listed


def test_a_listing_has_the_names_below_the_source_as_they_are(home):
    listed = [item.uri for item in list_objects("g", SourceSettings(uri="link/../other/"))]
    assert listed == [f"{home}/other/deep/x.jsonl", f"{home}/other/y.jsonl"]
    assert [item.uri for item in list_objects("g", SourceSettings(uri="other/../logs/[[]1].jsonl"))] == [
        f"{home}/logs/[1].jsonl"
    ]
    with pytest.raises(SourceError, match=f"there is no file or directory {home}/gone"):
        list_objects("g", SourceSettings(uri="other/../gone"))
    assert local_path("x\0y").startswith("/")
