"""A folder that is reached by a link or by `..` is surveyed like the folder itself."""

import json

import pytest

from resources.inspecting import source_survey as module


@pytest.mark.parametrize("spelled", ["link", "link/../logs", "file://{}/link", "./logs//"])
def test_a_linked_folder_has_the_root_that_its_objects_are_listed_under(tmp_path, monkeypatch, spelled):
    for part in ("gateway", "thumbs"):
        (tmp_path / "logs" / part).mkdir(parents=True)
        for number in range(40):
            (tmp_path / "logs" / part / f"{number}.jsonl").write_text(json.dumps({"response_id": "1", "value": 1}) + "\n")
    (tmp_path / "link").symlink_to("logs")
    monkeypatch.chdir(tmp_path)
    assert module._root(spelled.format(tmp_path)) == f"{tmp_path}/logs/"
