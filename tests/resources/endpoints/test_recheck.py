"""A release's parts belong together and are current, or it is refused with the part's name."""

import pytest

from resources.artefacts.registry import Registry
from resources.endpoints.approvals import disagreements, superseded
from resources.lake.lake import LakeLayout


@pytest.fixture
def registry(tmp_path):
    return Registry(LakeLayout.open(tmp_path / "lake"), "tutor")


def make(registry, kind, name, text, *inputs):
    """An artefact whose one file holds `text` and what it was made from."""
    draft = registry.draft(kind, name, name, ("model_ops/jobs/job.py",), {"text": text}, [item.as_input() for item in inputs])
    (draft.directory / "content.txt").write_text(f"{text} {[item.digest for item in inputs]}")
    return draft.finished or registry.finish(draft, {})


def graph(registry, steps="1", quantized_from=None, reported=None):
    """Everything from sft_model to a release, for one number of training steps. Returns all of it by name."""
    sft = make(registry, "model", "sft_model", steps)
    target = make(registry, "model", "quantized_model", "int8", quantized_from or sft)
    answers = make(registry, "dataset", "speculator_dataset", "answers", target)
    drafter = make(registry, "model", "speculator", "head", target, answers)
    report = make(registry, "dataset", "evaluation_report", "report", sft, reported or target, drafter, answers)
    release = make(registry, "release", "release", "release", target, drafter, report)
    return {"sft": sft, "target": target, "drafter": drafter, "report": report, "release": release}


def found_wrong(registry, made):
    place = registry.directory(made["release"])
    return disagreements(registry.lake, place), superseded(registry.lake, place)


def test_a_release_of_one_run_agrees_and_is_current(registry):
    assert found_wrong(registry, graph(registry)) == ([], [])


def test_a_target_made_from_the_model_of_the_run_before_is_refused(registry):
    """What was reported: changed sft.steps, the old model quantized, measured and released."""
    before = graph(registry, steps="1")
    made = graph(registry, steps="2", quantized_from=before["sft"])
    [problem] = found_wrong(registry, made)[1]
    assert problem == (f"quantized_model was made from sft_model {before['sft'].version}, current is {made['sft'].version}")


def test_a_report_about_other_weights_is_refused(registry):
    before = graph(registry, steps="1")
    made = graph(registry, steps="2", reported=before["target"])
    [problem] = found_wrong(registry, made)[0]
    assert f"measured another quantized_model than {made['target'].version}" in problem


def test_a_drafter_of_another_target_is_refused(registry):
    before, made = graph(registry, steps="1"), graph(registry, steps="2")
    report = make(registry, "dataset", "evaluation_report", "both", made["sft"], made["target"], before["drafter"])
    mixed = {"release": make(registry, "release", "release", "mixed", made["target"], before["drafter"], report)}
    [problem] = found_wrong(registry, mixed)[0]
    assert f"the drafter {before['drafter'].version} was trained for another target" in problem


def test_a_release_without_a_report_is_refused(registry):
    target = make(registry, "model", "sft_model", "1")
    made = {"release": make(registry, "release", "release", "bare", target)}
    assert "names no evaluation report" in found_wrong(registry, made)[0][0]


def test_an_older_release_still_agrees_with_itself_though_newer_parts_exist(registry):
    before = graph(registry, steps="1")
    graph(registry, steps="2")
    agreeing, outdated = found_wrong(registry, before)
    assert agreeing == []
    assert any("current is" in problem for problem in outdated)


def test_the_same_content_under_another_version_is_current(registry):
    made = graph(registry)
    draft = registry.draft("model", "sft_model", "sft_model", ("model_ops/jobs/job.py",), {"text": "same bytes"}, [])
    (draft.directory / "content.txt").write_text("1 []")
    again = registry.finish(draft, {})
    assert again.version != made["sft"].version and again.digest == made["sft"].digest
    assert found_wrong(registry, made) == ([], [])
