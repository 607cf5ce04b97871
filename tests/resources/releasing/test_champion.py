"""The champion that a new release is compared with: the last one with another target or drafter, also after approvals and
rollbacks."""

import json
from types import SimpleNamespace

import pytest

from model_ops.evaluation.measurement import Measurement
from resources.artefacts.registry import Registry
from resources.endpoints.approvals import roll_back
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import read_manifest
from resources.releases.release import Part, Release, ReleaseRef
from resources.releasing.approval_page import _Side, _size
from resources.releasing.champion import Champion, champion_to_beat
from resources.releasing.worth import gains, worth_of

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


def measured(what="loss_increase", against="base", **fields):
    given = {"value": -0.1, "low": -0.12, "high": -0.08, "n": 30, "counted": "rows", "unit": "nats per token"} | fields
    return Measurement(what=what, of="target", against=against, **given)


def score(on="maths", against="base", **fields):
    given = {"value": 0.2, "low": 0.1, "high": 0.3, "n": 100, "counted": "items", "unit": "share", "sampling": "greedy"}
    return measured("accuracy_gain", against, on=on, **given | fields)


def said(*found, learnt=True, champion=None, **report):
    return worth_of({"measurements": [each.model_dump() for each in found], **report}, learnt, champion)


NOTHING = measured(value=-0.0003, low=-0.0005, high=-0.0001)


def test_a_gain_is_named_with_its_measure_and_interval():
    assert said(measured()) == (
        "Measurably better than its base: held-out loss -0.100 nats per token (95 %: -0.120 to -0.080; 30 rows); "
        "no release of other models was served before it."
    )


def test_both_sides_of_a_score_are_named_where_both_have_intervals():
    own = score(value=0.7, low=0.6, high=0.8).model_copy(update={"what": "accuracy", "against": ""})
    base = own.model_copy(update={"of": "base", "value": 0.5, "low": 0.4, "high": 0.6})
    both = "score on maths 0.700 (0.600 to 0.800) instead of 0.500 (0.400 to 0.600): +0.200 (95 %: +0.100 to +0.300"
    assert both in said(score(), own, base)
    assert "score on maths +0.200 (95 %" in said(score(), own)
    assert "score on maths +0.200 (95 %" in said(score(), own, base.model_copy(update={"low": None, "high": None}))


def test_a_training_that_did_nothing_shows_no_gain():
    assert said(NOTHING).startswith("No gain over its base can be shown: held-out loss")
    assert said().startswith("No gain over its base can be shown; ")
    assert said(measured(low=None, high=None)).startswith("No gain over its base")
    assert said(measured(value=0.2, low=0.1, high=0.3)).startswith("Measurably worse than its base: held-out loss +0.200")


def test_scores_come_before_loss_and_what_contradicts_is_said():
    both = said(score(), measured(value=0.2, low=0.1, high=0.3))
    assert (
        "better than its base: score on maths +0.200 (95 %: +0.100 to +0.300; 100 items), but worse: held-out loss +0.200"
        in both
    )
    alone = said(score(value=0.0, low=-0.1, high=0.1), measured())
    assert "held-out loss -0.100 nats per token (95 %: -0.120 to -0.080; 30 rows), which no other measure shows" in alone
    assert [each.gain.sampling for each in gains([score(), score(sampling="sampled")], "base")] == ["sampled"]


@pytest.mark.parametrize(("divergence", "shows"), [(0.2, True), (0.001, False)])
def test_pairs_count_only_where_the_model_moved(divergence, shows):
    pairs = measured("preference_accuracy", "sft", value=0.8, low=0.7, high=0.9, counted="pairs", unit="share")
    moved = measured("divergence_from_parent", "sft", value=divergence, low=0.0, high=0.3)
    text = said(NOTHING, pairs, moved)
    assert ("better than its base: share of held-out pairs whose chosen answer gained more 0.800" in text) == shows
    assert ("30 pairs against sft)" in text) == shows


def test_what_is_served_is_compared_too():
    served = Champion("3f2a")
    assert said(measured(), measured(against="champion"), champion=served).count("easurably better than") == 2
    none = said(measured(), measured(against="champion", value=0.0, low=-0.01, high=0.02), champion=served)
    assert "; no gain over champion 3f2a can be shown: held-out loss +0.000" in none
    assert "; champion 3f2a has the same target." in said(measured(), champion=Champion("3f2a", no_target="same"))
    assert "; its files are gone." in said(measured(), champion=Champion("3f2a", problem="its files are gone"))


def test_a_release_that_trained_nothing_has_no_gain_to_show():
    assert said(measured(), learnt=False).startswith("Its models were not trained, so it has no gain over its base to show; ")


def test_answers_that_make_no_sense_are_named():
    loss = Measurement(what="loss", of="target", value=5.95, n=30, counted="rows", unit="nats per token")
    loops = [{"drafter": "none", "sampling": "as logged", "looping_share": 0.62}]
    text = said(measured(), loss, acceptance=loops)
    assert text.startswith("62% of its held-out answers, sampled as logged, repeat themselves; its perplexity on held-out ")
    assert "answers is 384, so answers of its own can hardly make sense; measurably better than its base: " in text
    fine = said(measured(), loss.model_copy(update={"value": 1.5}), acceptance=[loops[0] | {"looping_share": 0.02}])
    assert "repeat" not in fine and "perplexity" not in fine


def test_an_adapter_beside_merged_weights_is_counted_once():
    files = {"model-1.safetensors": 3_000_000, "adapter/adapter_model.safetensors": 500_000, "tokenizer.json": 9_000_000}
    target = SimpleNamespace(files=[SimpleNamespace(path=path, bytes=size) for path, size in files.items()])
    assert _size(_Side(served=[target]), 0) == "3.00"
