"""The champion that a new model is compared with: the last one with other weights, also after approvals and rollbacks."""

import json

import pytest

from resources.artefacts.manifest import read_manifest
from resources.artefacts.registry import Registry
from resources.lake import Lake
from resources.releasing.champion import champion_to_beat
from resources.releasing.endpoints import Endpoint
from resources.releasing.release import Part, Release
from resources.releasing.rollback import roll_back
from resources.releasing.signature import Signature
from resources.releasing.subject import subject_of

BY = Signature("ana", "test", "")


@pytest.fixture
def lake(tmp_path):
    return Lake.open(tmp_path / "lake")


def release(lake, weights, number=0):
    """A finished release of a model with these weights."""
    registry = Registry(lake, "tutor")

    def made(kind, name, config, fill):
        draft = registry.draft(kind, name, name, ("model_ops/job.py",), config, [])
        if draft.finished is None:
            fill(draft.directory)
        return draft.finished or registry.finish(draft, {})

    target = made("model", "sft_model", {"w": weights}, lambda home: (home / "model.txt").write_text(weights))
    part = Part(path=f"models/{target.name}/{target.version}", name=target.name, version=target.version, digest=target.digest)
    content = Release(workload="tutor", target=part, speculator=None, num_speculative_tokens=3, gates=[])
    manifest = made("release", "release", {"w": weights, "n": number},
                    lambda home: (home / "release.json").write_text(json.dumps({**content.model_dump(), "number": number})))
    return registry.directory(manifest), target


def test_the_last_champion_with_other_weights(lake):
    first, one = release(lake, "one")
    second, two = release(lake, "two")
    _, three = release(lake, "three")
    assert champion_to_beat(lake, "tutor", one) is None
    endpoint = Endpoint(lake, "tutor")
    endpoint.promote(subject_of(first), BY)
    assert champion_to_beat(lake, "tutor", one) is None  # a run after its own approval compares as the run before it
    assert champion_to_beat(lake, "tutor", two).release == first.name
    endpoint.promote(subject_of(second), BY)
    assert champion_to_beat(lake, "tutor", two).release == first.name
    assert champion_to_beat(lake, "tutor", three).target.digest == two.digest
    again, _ = release(lake, "two", number=1)  # the same weights with another drafter
    endpoint.promote(subject_of(again), BY)
    assert champion_to_beat(lake, "tutor", two).release == first.name


def test_after_a_rollback_the_earlier_champion_counts(lake, monkeypatch):
    monkeypatch.setattr("resources.releasing.rollback.recheck", lambda *_: [])
    first, _ = release(lake, "one")
    second, _ = release(lake, "two")
    _, three = release(lake, "three")
    endpoint = Endpoint(lake, "tutor")
    endpoint.promote(subject_of(first), BY)
    endpoint.promote(subject_of(second), BY)
    roll_back(lake, first, BY)
    assert champion_to_beat(lake, "tutor", three).release == first.name


def test_a_champion_whose_files_are_gone_is_named(lake):
    first, one = release(lake, "one")
    _, two = release(lake, "two")
    Endpoint(lake, "tutor").promote(subject_of(first), BY)
    (lake.root / "models" / one.name / one.version / "manifest.json").unlink()
    found = champion_to_beat(lake, "tutor", two)
    assert found.target is None and "cannot be read" in found.problem and found.release == first.name
    assert read_manifest(first).version == first.name
