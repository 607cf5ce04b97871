"""Every job runs a step after the steps that make what it reads, whatever stages a recipe switches off."""

from collections import namedtuple
from itertools import product
from pathlib import Path

import dagster as dg
import pytest

from resources.lake.lake import LakeLayout
from resources.manifests.manifest import Code, Input, Manifest
from tests.thorough_cases import thorough_except

RECIPE = "workload: math-tutor\nbase_model: {base}\nsources: {{gateway: {{uri: logs/}}}}\nfirst_day: 2026-06-01\n"
JUDGE = 'curation: {judge: {base_url: "http://localhost:8000/v1", model: big}, min_quality: 4}\n'
DRAFTERS = {
    "off": "speculator: {enabled: false}\n",
    "eagle3": "",
    "the student": "speculator: {architecture: draft_model}\n",
    "the base's own layer": "speculator: {architecture: mtp}\n",
}
Choice = namedtuple("Choice", "sft student quantize release judge drafter more", defaults=[""])


def name_of(choice: Choice) -> str:
    """What is on, the drafter, and the beginning of what is added."""
    on = [name for name in ("sft", "student", "quantize", "release", "judge") if getattr(choice, name)]
    return "+".join([*on, choice.drafter, choice.more[:32].strip()]).strip("+")


def makes_sense(choice: Choice) -> bool:
    """The recipe is refused if it makes no model, or if a student that is switched off drafts."""
    makes_a_model = choice.sft or choice.student or choice.quantize or choice.drafter != "off"
    return makes_a_model and (choice.student or choice.drafter != "the student")


EVERY = [Choice(*choice[:4], False, choice[4]) for choice in product(*[(True, False)] * 4, DRAFTERS)]
SWITCHES = [choice for choice in EVERY if makes_sense(choice)]
MERGED = [
    choice._replace(more=more)
    for choice in (SWITCHES[0], next(one for one in SWITCHES if not one.student))
    for more in ("merge: {weights: search}\n", "merge: {weights: [0.7, 0.3]}\n")
]
MERGED += [next(one for one in SWITCHES if not one.sft)._replace(more="merge: {models: [base, ./one]}\n")]
TEACHER = 'teacher: {{base_url: "http://localhost:8000/v1", model: big, licence: mit, trains: {}}}\n'
TAUGHT = [SWITCHES[0]._replace(more=TEACHER.format(trains)) for trains in ("sft", "student", "both")]
TAUGHT += [
    SWITCHES[0]._replace(more=f"teacher: {{base: {base}, licence: mit, trains: student}}\n") for base in ("sft", "org/big")
]
NAMED = [SWITCHES[0]._replace(more="datasets: {named: {best: {}, rest: {}}}\nsft: {dataset: best}\nstudent: {dataset: rest}\n")]
NAMED += [
    SWITCHES[0]._replace(more="datasets: {named: {best: {}, rest: {}}}\nsft: {dataset: rest}\nsecond_sft: {dataset: best}\n")
]
GIVEN = ("sft_dataset", "best", "rest")
JUDGED = [choice._replace(judge=True) for choice in SWITCHES[:2]]  # the judge scores rows before any model reads them


def recipe_of(tmp_path, choice: Choice) -> Path:
    (tmp_path / "mimo").mkdir()
    (tmp_path / "one").mkdir()
    text = RECIPE.format(base="./mimo" if choice.drafter == "the base's own layer" else "tiny") + DRAFTERS[choice.drafter]
    for section in ("sft", "student", "quantize", "release"):
        text += "" if getattr(choice, section) else f"{section}: {{enabled: false}}\n"
    text += (JUDGE if choice.judge else "") + choice.more
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    return recipe


def graph_of(tmp_path, choice: Choice) -> dg.Definitions:
    from pipelines.graph.recipe_graph import definitions

    return definitions(recipe_of(tmp_path, choice), tmp_path / "lake")


def steps_of(job: dg.JobDefinition) -> tuple[dict[dg.AssetKey, str], dict[str, set[str]]]:
    """The step that makes each asset, and the steps that each step waits for, in the plan that Dagster executes."""
    from dagster._core.execution.api import create_execution_plan

    steps = create_execution_plan(job).steps
    makes = {output.properties.asset_key: step.key for step in steps for output in step.step_outputs}
    waits = {step.key: {key for wanted in step.step_inputs for key in wanted.dependency_keys} for step in steps}
    return {key: step for key, step in makes.items() if key is not None}, waits


def steps_of_checks(job: dg.JobDefinition) -> dict[dg.AssetCheckKey, str]:
    """The step that makes each check."""
    from dagster._core.execution.api import create_execution_plan

    outputs = [
        (output.properties.asset_check_key, step.key)
        for step in create_execution_plan(job).steps
        for output in step.step_outputs
    ]
    return {check: step for check, step in outputs if check is not None}


@pytest.mark.parametrize("choice", [choice for choice in EVERY if not makes_sense(choice) and choice.release], ids=name_of)
def test_a_recipe_that_makes_no_model_is_refused_in_one_sentence(tmp_path, choice):
    from pipelines.contract.recipe import load_recipe
    from pipelines.contract.text import RecipeProblemsError

    with pytest.raises(RecipeProblemsError) as refused:
        load_recipe(recipe_of(tmp_path, choice))
    wanted = "no model would be made" if choice.drafter == "off" else "enable the student"
    assert len(refused.value.problems) == 1 and wanted in refused.value.problems[0].sentence


@pytest.mark.parametrize("choice", SWITCHES + JUDGED + MERGED + TAUGHT + NAMED, ids=name_of)
def test_a_step_waits_for_what_its_asset_reads(tmp_path, choice):
    graph = graph_of(tmp_path, choice)
    assets = graph.resolve_asset_graph()
    compared = 0
    for name in ("logs", "train"):
        made_by, waits = steps_of(graph.resolve_job_def(name))
        checked_by = steps_of_checks(graph.resolve_job_def(name))
        for key, step in made_by.items():
            read = assets.get(key).parent_keys
            wanted = {made_by[parent] for parent in read if parent in made_by and made_by[parent] != step}
            assert waits[step] >= wanted, f"{step} does not wait for {wanted - waits[step]}"
            blocking = {
                checked_by[check]
                for check in assets.asset_check_keys
                if assets.get(check).blocking and check.asset_key in read and check.asset_key in made_by
            }
            assert waits[step] >= blocking, f"{step} does not wait for the checks {blocking - waits[step]}"
            compared += len(wanted)
    assert compared >= 8  # a comparison of nothing would hold as well


class RecordingWorkshop:
    """Stands in for the workshop: makes nothing, and refuses to give what no step of this run has made."""

    workload = "math-tutor"

    def __init__(self, lake):
        self.lake = lake
        self.made: dict[str, set[str]] = {}

    def current(self, kind, name):
        assert name in self.made, f"{name} is read and no step before has made it"
        return self._manifest(kind, name)

    def train(
        self, name, operation, settings, inputs, context, kind="model", outside=(), continue_from=None, pinned=None, facts=None
    ):
        self.made[name] = {manifest.name.split("/")[1] for manifest in inputs.values()}
        return self._manifest(kind, name)

    def build(self, kind, name, op, sources, config, inputs, work):
        self.made[name] = {item.name.split("/")[1] for item in inputs if item.kind in ("dataset", "model")}
        return self._manifest(kind, name)

    def commit_to_import(self, model, branch, wanted):
        return None

    def external(self, place):
        return Input(kind="external", name=place, digest="0")

    def slice(self, table, as_served=False):
        return Input(kind="table", name=table, digest="0")

    def is_reused(self, manifest):
        return False

    def directory(self, manifest):
        return Path("nowhere")

    @staticmethod
    def _manifest(kind, name):
        return Manifest(
            kind=kind,
            name=f"math-tutor/{name}",
            version="0",
            digest=name,
            inputs=[],
            op="",
            config={},
            code=Code(revision="", dirty=False),
            environment={},
            files=[],
        )


RELEASED = [choice for choice in SWITCHES + MERGED + TAUGHT + NAMED if choice.release]


@pytest.mark.parametrize("choice", thorough_except(RELEASED[::4], RELEASED), ids=name_of)
def test_what_a_body_takes_was_made_by_a_step_that_it_waits_for(tmp_path, choice):
    graph = graph_of(tmp_path, choice)
    workshop = RecordingWorkshop(LakeLayout.open(tmp_path / "lake"))
    workshop.made |= {name: set() for name in GIVEN}
    found = {key.path[-1]: key for key in graph.resolve_asset_graph().executable_asset_keys}
    chosen = [
        key
        for name, key in found.items()
        if name.endswith(("_model", "_answers", "length_report")) or name.startswith("specul")
    ]
    chosen.append(found["evaluation_report"])
    job = dg.Definitions(
        assets=graph.assets,
        resources={**graph.resources, "workshop": dg.ResourceDefinition.hardcoded_resource(workshop)},
        executor=dg.in_process_executor,
        jobs=[dg.define_asset_job("models", chosen)],
    ).resolve_job_def("models")
    assert job.execute_in_process().success
    parents = {
        name: {key.path[-1] for key in graph.resolve_asset_graph().get(found[name]).parent_keys}
        for name in workshop.made
        if name not in GIVEN
    }
    taken_but_not_waited_for = {name: workshop.made[name] - parents[name] for name in parents}
    assert not any(taken_but_not_waited_for.values()), taken_but_not_waited_for
