"""Every job runs a step after the steps that make what it reads, whatever stages a recipe switches off."""

from itertools import product
from pathlib import Path

import dagster as dg
import pytest

from resources.artefacts.manifest import Code, Input, Manifest
from resources.lake import Lake

RECIPE = "workload: math-tutor\nbase_model: {base}\nsources: {{gateway: {{uri: logs/}}}}\nfirst_day: 2026-06-01\n"
JUDGE = 'curation: {judge: {base_url: "http://localhost:8000/v1", model: big}, min_quality: 4}\n'
DRAFTERS = {
    "off": "speculator: {enabled: false}\n",
    "eagle3": "",
    "the student": "speculator: {architecture: draft_model}\n",
    "the base's own layer": "speculator: {architecture: mtp}\n",
}
SWITCHES = [
    choice for choice in product((True, False), (True, False), (True, False), DRAFTERS)
    if choice[0] or choice[3] != "the student"  # a student that is switched off drafts for nobody: the recipe is refused
]


def graph_of(tmp_path, student: bool, quantize: bool, judge: bool, drafter: str) -> dg.Definitions:
    from pipelines.graph.recipe_graph import definitions

    (tmp_path / "mimo").mkdir()
    text = RECIPE.format(base="./mimo" if drafter == "the base's own layer" else "tiny") + DRAFTERS[drafter]
    text += "" if student else "student: {enabled: false}\n"
    text += "" if quantize else "quantize: {enabled: false}\n"
    text += JUDGE if judge else ""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    return definitions(recipe, tmp_path / "lake")


def steps_of(job: dg.JobDefinition) -> tuple[dict[dg.AssetKey, str], dict[str, set[str]]]:
    """The step that makes each asset, and the steps that each step waits for, in the plan that Dagster executes."""
    from dagster._core.execution.api import create_execution_plan

    steps = create_execution_plan(job).steps
    makes = {output.properties.asset_key: step.key for step in steps for output in step.step_outputs}
    waits = {step.key: {key for wanted in step.step_inputs for key in wanted.dependency_keys} for step in steps}
    return {key: step for key, step in makes.items() if key is not None}, waits


@pytest.mark.parametrize("student, quantize, judge, drafter", SWITCHES)
def test_a_step_waits_for_what_its_asset_reads(tmp_path, student, quantize, judge, drafter):
    graph = graph_of(tmp_path, student, quantize, judge, drafter)
    assets = graph.resolve_asset_graph()
    compared = 0
    for name in ("logs", "train"):
        made_by, waits = steps_of(graph.resolve_job_def(name))
        for key, step in made_by.items():
            read = assets.get(key).parent_keys
            wanted = {made_by[parent] for parent in read if parent in made_by and made_by[parent] != step}
            assert waits[step] >= wanted, f"{step} does not wait for {wanted - waits[step]}"
            blocking = {
                f"{check.asset_key.path[-1]}_{check.name}" for check in assets.asset_check_keys
                if assets.get(check).blocking and check.asset_key in read and check.asset_key in made_by
            }
            assert waits[step] >= blocking, f"{step} does not wait for the checks {blocking - waits[step]}"
            compared += len(wanted)
    assert compared >= 10  # a comparison of nothing would hold as well


class RecordingWorkshop:
    """Stands in for the workshop: makes nothing, and refuses to give what no step of this run has made."""

    workload = "math-tutor"

    def __init__(self, lake):
        self.lake = lake
        self.made: dict[str, set[str]] = {}

    def current(self, kind, name):
        assert name in self.made, f"{name} is read and no step before has made it"
        return self._manifest(kind, name)

    def train(self, name, operation, settings, inputs, context, kind="model", outside=(), continue_from=None, pinned=None):
        self.made[name] = {manifest.name.split("/")[1] for manifest in inputs.values()}
        return self._manifest(kind, name)

    def build(self, kind, name, op, sources, config, inputs, work):
        self.made[name] = {item.name.split("/")[1] for item in inputs if item.kind in ("dataset", "model")}
        return self._manifest(kind, name)

    def slice(self, table, as_served=False):
        return Input(kind="table", name=table, digest="0")

    def is_reused(self, manifest):
        return False

    def directory(self, manifest):
        return Path("nowhere")

    @staticmethod
    def _manifest(kind, name):
        return Manifest(kind=kind, name=f"math-tutor/{name}", version="0", digest=name, inputs=[], op="", config={},
                        code=Code(revision="", dirty=False), environment={}, files=[])


@pytest.mark.parametrize("student, quantize, drafter", sorted({(a, b, d) for a, b, _, d in SWITCHES}))
def test_what_a_body_takes_was_made_by_a_step_that_it_waits_for(tmp_path, student, quantize, drafter):
    graph = graph_of(tmp_path, student, quantize, False, drafter)
    workshop = RecordingWorkshop(Lake.open(tmp_path / "lake"))
    workshop.made["sft_dataset"] = set()
    found = {key.path[-1]: key for key in graph.resolve_asset_graph().executable_asset_keys}
    chosen = [key for name, key in found.items() if name.endswith(("_model", "_answers")) or name.startswith("specul")]
    chosen.append(found["evaluation_report"])
    job = dg.Definitions(
        assets=graph.assets, resources={**graph.resources, "workshop": dg.ResourceDefinition.hardcoded_resource(workshop)},
        executor=dg.in_process_executor, jobs=[dg.define_asset_job("models", chosen)],
    ).resolve_job_def("models")
    assert job.execute_in_process().success
    parents = {
        name: {key.path[-1] for key in graph.resolve_asset_graph().get(found[name]).parent_keys} for name in workshop.made
        if name != "sft_dataset"
    }
    taken_but_not_waited_for = {name: workshop.made[name] - parents[name] for name in parents}
    assert not any(taken_but_not_waited_for.values()), taken_but_not_waited_for
