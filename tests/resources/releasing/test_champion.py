"""The champion that a new release is compared with: the last one with another target or drafter, also after approvals and
rollbacks."""

import json

import pytest

from resources.artefacts.registry import Registry
from resources.endpoints.approvals import roll_back
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import read_manifest
from resources.releases.release import Part, Release, ReleaseRef
from resources.releasing.champion import champion_to_beat

BY = Actor("ana", "test", "")


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


def release(lake, weights, number=0, drafter=None, shape=8):
    """A finished release of a model with these weights, and its target; with a drafter, that as well."""
    registry = Registry(lake, "tutor")

    def made(kind, name, config, fill):
        draft = registry.draft(kind, name, name, ("model_ops/jobs/job.py",), config, [])
        if draft.finished is None:
            fill(draft.directory)
        return draft.finished or registry.finish(draft, {})

    def model(name, content):
        found = made("model", name, {"w": content}, lambda home: (home / "config.json").write_text(content))
        return found, Part(
            path=f"models/{found.name}/{found.version}", name=found.name, version=found.version, digest=found.digest
        )

    target, part = model("sft_model", json.dumps({"weights": weights, "hidden_size": shape}))
    head, head_part = model("speculator", json.dumps({"weights": drafter})) if drafter else (None, None)
    content = Release(workload="tutor", target=part, speculator=head_part, num_speculative_tokens=3, gates=[])
    manifest = made(
        "release",
        "release",
        {"w": weights, "n": number, "d": drafter, "s": shape},
        lambda home: (home / "release.json").write_text(json.dumps({**content.model_dump(), "number": number})),
    )
    return (registry.directory(manifest), target, head) if drafter else (registry.directory(manifest), target)


def test_the_last_champion_with_other_weights(lake):
    first, one = release(lake, "one")
    second, two = release(lake, "two")
    _, three = release(lake, "three")
    assert champion_to_beat(lake, "tutor", one) is None
    endpoint = Endpoint(lake, "tutor")
    endpoint.promote(ReleaseRef.of(first), BY)
    assert champion_to_beat(lake, "tutor", one) is None  # a run after its own approval compares as the run before it
    assert champion_to_beat(lake, "tutor", two).release == first.name
    endpoint.promote(ReleaseRef.of(second), BY)
    assert champion_to_beat(lake, "tutor", two).release == first.name
    assert champion_to_beat(lake, "tutor", three).target.digest == two.digest
    again, _ = release(lake, "two", number=1)  # the same weights with another drafter
    endpoint.promote(ReleaseRef.of(again), BY)
    assert champion_to_beat(lake, "tutor", two).release == first.name


def test_after_a_rollback_the_earlier_champion_counts(lake, monkeypatch):
    monkeypatch.setattr("resources.endpoints.approvals.recheck", lambda *_: [])
    first, _ = release(lake, "one")
    second, _ = release(lake, "two")
    _, three = release(lake, "three")
    endpoint = Endpoint(lake, "tutor")
    endpoint.promote(ReleaseRef.of(first), BY)
    endpoint.promote(ReleaseRef.of(second), BY)
    roll_back(lake, first, BY)
    assert champion_to_beat(lake, "tutor", three).release == first.name


def test_a_champion_whose_files_are_gone_is_named(lake):
    first, one = release(lake, "one")
    _, two = release(lake, "two")
    Endpoint(lake, "tutor").promote(ReleaseRef.of(first), BY)
    (lake.root / "models" / one.name / one.version / "manifest.json").unlink()
    found = champion_to_beat(lake, "tutor", two)
    assert found.target is None and "cannot be read" in found.problem and found.release == first.name
    assert read_manifest(first).version == first.name


def test_another_drafter_of_the_same_target_is_compared_with_the_champions(lake):
    first, one, d1 = release(lake, "one", drafter="a")
    second, _, d2 = release(lake, "one", drafter="b")
    endpoint = Endpoint(lake, "tutor")
    endpoint.promote(ReleaseRef.of(first), BY)
    assert champion_to_beat(lake, "tutor", one, d1) is None
    found = champion_to_beat(lake, "tutor", one, d2)
    assert (found.release, found.target, found.drafter.digest) == (first.name, None, d1.digest)
    assert (found.no_target, found.no_drafter, found.problem) == ("the champion has the same target", "", "")
    endpoint.promote(ReleaseRef.of(second), BY)
    assert champion_to_beat(lake, "tutor", one, d2) == found  # as before its approval
    _, two, _ = release(lake, "two", drafter="b")
    found = champion_to_beat(lake, "tutor", two, d2)
    assert (found.release, found.target.digest, found.drafter) == (second.name, one.digest, None)
    assert found.no_drafter == "the champion has the same drafter" and not found.no_target


@pytest.mark.parametrize(
    ("champion", "why"),
    [
        ({}, "the champion has no drafter"),
        ({"drafter": "a"}, ""),
        ({"drafter": "a", "shape": 16}, "the champion's drafter is for a target of another shape"),
    ],
)
def test_a_drafter_that_the_champion_has_not_or_that_does_not_fit(lake, champion, why):
    before = release(lake, "one", **champion)[0]
    _, two, new = release(lake, "two", drafter="b")
    Endpoint(lake, "tutor").promote(ReleaseRef.of(before), BY)
    found = champion_to_beat(lake, "tutor", two, new)
    assert found.target is not None and (found.drafter is None, found.no_drafter) == (bool(why), why)
    alone = champion_to_beat(lake, "tutor", two)
    assert alone.drafter is None and alone.no_drafter == "the release has no drafter"
