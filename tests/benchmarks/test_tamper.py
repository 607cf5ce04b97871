"""The benchmark that changes a signed release changes something every time, also in a lake whose release was approved
before."""

import pytest

from benchmarks import tamper
from benchmarks.signed_release import make_keys, signed_copy
from resources.endpoints.approvals import record_approval
from resources.endpoints.endpoint_log import Actor
from resources.lake.lake import LakeLayout
from resources.signing.keys import SIGNING_KEY, TRUSTED_KEYS


@pytest.mark.parametrize("before", ["nobody", "bob", "the same release by two others"])
def test_every_change_in_a_lake_is_refused_whoever_approved_before(tmp_path, make_release, monkeypatch, before):
    monkeypatch.delenv(SIGNING_KEY, raising=False)
    source = LakeLayout.open(tmp_path / "source")
    made = make_release(source, 1, drafts=True)
    for name in {"nobody": (), "bob": ("bob",)}.get(before, ("bob", "cid")):
        record_approval(source, made, Actor(name, "MILLRACE_USER"))
    keys = make_keys(tmp_path)
    monkeypatch.setenv(SIGNING_KEY, str(keys / "ann.pem"))
    monkeypatch.setenv(TRUSTED_KEYS, str(keys / "trusted"))
    lake, directory = signed_copy(source, tmp_path)
    monkeypatch.setattr(tamper, "PLACES", {"middle": 0.5})
    found = dict(tamper._in_lake(lake, directory))
    assert len(found) > 20 and [name for name, refused in found.items() if not refused] == []
