"""The evaluation compares with the champion's model and drafter, and a release that is worse than them is refused.

The real assets, workshop, registry and lake; in the worker's place stands one that writes a report."""

import json

import dagster as dg
import pytest

from assets import release as release_assets
from assets import reports
from model_ops.evaluation.measurement import Measurement
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.speculators.registry import speculator_settings
from resources.artefacts.registry import Registry
from resources.endpoints.approvals import recheck
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.releases.release import Part, Release, ReleaseRef, ReleaseSettings, read_release
from resources.releases.settings import Gates
from resources.releasing.summary import Summary
from resources.stages.model_policy import ModelPolicy
from resources.workshop.workshop import Workshop

ALONE = ModelPolicy(off=frozenset({"second_sft", "preference", "rft", "merge", "student", "quantize", "speculator"}))


class Launcher:
    """Stands in for the worker: the served model's loss is higher than the champion's by `worse`, and its drafter's acceptance
    length is lower by that share."""

    def __init__(self, worse):
        self.worse, self.inputs = worse, {}

    def run(self, job, context):
        self.inputs = {role: (place.parent.name, place.name) for role, place in job.inputs.items()}
        found = [
            Measurement(
                what="loss_increase",
                of="target",
                against=role,
                value=value,
                low=value,
                high=value,
                n=9,
                counted="rows",
                unit="nats per token",
            )
            for role, value in (("base", -0.3), ("champion", self.worse))
            if role in job.inputs
        ]
        found.append(
            Measurement(
                what="recovery",
                of="target",
                against="reference",
                value=1.0,
                low=1.0,
                high=1.0,
                n=9,
                counted="rows",
                unit="ratio",
            )
        )
        if "champion_speculator" in job.inputs:
            found.append(
                Measurement(
                    what="acceptance_gain",
                    of="eagle3",
                    against="champion",
                    sampling="as logged",
                    n=9,
                    value=-self.worse,
                    low=-self.worse,
                    high=0.1,
                    counted="prompts",
                    unit="share",
                )
            )
        report = {"measurements": [each.model_dump() for each in found], "not_measured": {}}
        (job.output / "report.json").write_text(json.dumps(report))
        (job.output / "speed.json").write_text("{}")
        return {}


def model(registry, name, weights):
    draft = registry.draft("model", name, name, ("model_ops/jobs/job.py",), {"weights": weights}, [])
    (draft.directory / "model.txt").write_text(weights)
    (draft.directory / "config.json").write_text('{"eos_token_id": 2}')
    return registry.finish(draft, {})


def part_of(model):
    return Part(path=f"models/{model.name}/{model.version}", name=model.name, version=model.version, digest=model.digest)


def dataset(registry, name):
    draft = registry.draft("dataset", name, name, ("model_ops/jobs/job.py",), {}, [])
    (draft.directory / "what.txt").write_text("rows")
    registry.finish(draft, {})


@pytest.mark.parametrize(("worse", "refused"), [(0.1, True), (0.04, False)])
def test_a_drafter_that_accepts_less_than_the_champions_refuses_the_release(tmp_path, monkeypatch, worse, refused):
    """What the sensor `decide` makes most often: another drafter of the target that is served."""
    monkeypatch.setattr("resources.workshop.release_candidate.summarise", lambda *_: Summary("tutor", None, {}, {}, {}, False))
    monkeypatch.setattr(Summary, "write", lambda self, output: {})
    lake = LakeLayout.open(tmp_path / "lake")
    registry = Registry(lake, "tutor")
    parts = {name: part_of(model(registry, name, f"the first {name}")) for name in ("base_model", "sft_model", "speculator")}
    folder = lake.artefacts("release") / "tutor" / "0123456789ab"
    folder.mkdir(parents=True)
    (folder / "release.json").write_text(
        Release(
            workload="tutor", target=parts["sft_model"], speculator=parts["speculator"], num_speculative_tokens=3, gates=[]
        ).model_dump_json()
    )
    Endpoint(lake, "tutor").promote(ReleaseRef(version=folder.name, digest="d"), Actor("ana", "test", ""))
    model(registry, "speculator", "another")
    for name in ("sft_dataset", "speculator_dataset", "served_answers"):
        dataset(registry, name)
    launcher = Launcher(worse)
    only = Gates(**dict.fromkeys(Gates.model_fields) | {"acceptance_below_champion": 0.05, "loss_above_champion": 0.02})
    resources = {
        "workshop": Workshop(registry, launcher, threads=1),
        "evals": {},
        "evaluate_settings": EvaluateSettings(),
        "policy": ModelPolicy(off=frozenset({"second_sft", "preference", "rft", "merge", "student", "quantize"})),
        "release_settings": ReleaseSettings(gates=only),
        "speculator_settings": speculator_settings(),
    }
    assert dg.materialize([reports.evaluation_report, release_assets.release_candidate], resources=resources).success
    assert (
        launcher.inputs["champion_speculator"] == ("speculator", parts["speculator"].version)
        and "champion" not in launcher.inputs
    )
    release = registry.directory(registry.current("release", "release"))
    gates = {each.name: (each.passed, each.measured, each.reason) for each in read_release(release).gates}
    assert gates == {
        "acceptance_below_champion": (not refused, -worse, ""),
        "loss_above_champion": (True, None, "the champion has the same target"),
    }
    assert any(each.startswith("gate acceptance_below_champion: ") for each in recheck(lake, release)) == refused
    page = (release / "approval.html").read_text()
    assert "against champion 0123456789ab" in page and "No champion" not in page


@pytest.mark.parametrize(("worse", "refused"), [(0.1, True), (0.0, False)])
def test_a_better_champion_refuses_the_release(tmp_path, monkeypatch, worse, refused):
    monkeypatch.setattr("resources.workshop.release_candidate.summarise", lambda *_: Summary("tutor", None, {}, {}, {}, False))
    monkeypatch.setattr(Summary, "write", lambda self, output: {})
    lake = LakeLayout.open(tmp_path / "lake")
    registry = Registry(lake, "tutor")
    served_now = model(registry, "sft_model", "the champion's")
    folder = lake.artefacts("release") / "tutor" / "0123456789ab"
    folder.mkdir(parents=True)
    (folder / "release.json").write_text(
        Release(
            workload="tutor", target=part_of(served_now), speculator=None, num_speculative_tokens=3, gates=[]
        ).model_dump_json()
    )
    Endpoint(lake, "tutor").promote(ReleaseRef(version=folder.name, digest="d"), Actor("ana", "test", ""))
    for name in ("base_model", "sft_model"):
        model(registry, name, "new")
    for name in ("sft_dataset", "served_answers"):
        dataset(registry, name)
    launcher = Launcher(worse)
    resources = {
        "workshop": Workshop(registry, launcher, threads=1),
        "policy": ALONE,
        "evals": {},
        "evaluate_settings": EvaluateSettings(),
        "release_settings": ReleaseSettings(),
        "speculator_settings": speculator_settings(),
    }
    assert dg.materialize([reports.evaluation_report, release_assets.release_candidate], resources=resources).success
    assert launcher.inputs["champion"] == ("sft_model", served_now.version) and launcher.inputs["target"][0] == "sft_model"
    assert launcher.inputs["served"][0] == "served_answers", "the logged temperature counts without a drafter too"
    expected = [served_now.version]
    assert [item.version for item in registry.current("dataset", "evaluation_report").inputs if item.pinned] == expected
    release = registry.directory(registry.current("release", "release"))
    problems = recheck(lake, release)
    assert bool(problems) == refused and not [each for each in problems if "gate loss_above_champion: 0.1 nats" not in each]
    gate = next(each for each in read_release(release).gates if each.name == "loss_above_champion")
    assert (gate.wanted, gate.measured, gate.passed, gate.against) == (0.02, worse, not refused, "champion")
