"""What a name means to `millrace chat`."""

import pytest

from resources.endpoints.approvals import approve_release
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.releases.release import ReleaseRef
from resources.serving.chat import talking as module
from resources.serving.chat.talking import ChatError, find_speaker

ANA = Actor("ana", "MILLRACE_USER")


@pytest.fixture
def lake(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_cached", lambda name: tmp_path if name == "org/model" else None)
    return LakeLayout.open(tmp_path / "lake")


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
