"""The table of stages: it agrees with the assets, nothing else lists them, and a new stage is one line and one asset file."""

import ast
import itertools
import json
import re
import subprocess
import sys
from importlib import import_module

import dagster as dg
import pytest
from pydantic import Field

from resources.digests.code import PACKAGES
from resources.stages import table
from resources.stages.model_policy import ModelPolicy
from resources.stages.table import (
    STAGES,
    artefact_stages,
    daily_stages,
    logs_stages,
    model_chain,
    parent_of,
    planned_sections,
    stage,
)
from tests.conftest import PROJECT
from tests.reports import process_report

TABLE = PROJECT / "resources" / "stages" / "table.py"
COMMENTS = PROJECT / "resources" / "catalog" / "comments.py"
"""Says what each relation of the catalog holds: sentences about rows, not stages."""
NAMES = {found.name for found in STAGES}


def asset_files() -> dict[str, set[str]]:
    """Asset names by the file that defines them."""
    found = {}
    for path in (PROJECT / "assets").glob("*.py"):
        module = import_module(f"assets.{path.stem}")
        keys = set()
        for value in vars(module).values():
            if isinstance(value, dg.AssetsDefinition):
                keys |= {key.path[-1] for key in value.keys}
            elif isinstance(value, dg.AssetSpec):
                keys.add(value.key.path[-1])
        if keys:
            found[path.stem] = keys
    return found


def test_every_asset_is_in_the_table_and_lies_in_the_file_that_it_names():
    assert {name: {found.name for found in STAGES if found.file == name} for name in asset_files()} == asset_files()
    assert len(NAMES) == len(STAGES)


def test_the_table_and_the_assets_agree_on_groups():
    for found in STAGES:
        module = import_module(f"assets.{found.file}")
        specs = [spec for value in vars(module).values() if isinstance(value, dg.AssetsDefinition) for spec in value.specs]
        specs += [value for value in vars(module).values() if isinstance(value, dg.AssetSpec)]
        groups = {spec.group_name for spec in specs if spec.key.path[-1] == found.name}
        assert groups == {found.group}, found.name


def test_what_can_be_asked_of_the_table():
    assert [found.role for found in model_chain()] == [
        "base",
        "sft",
        "second_sft",
        "preference",
        "rft",
        "merged",
        "student",
        "quantized",
    ]
    assert (
        parent_of("merged_model") == "rft_model"
        and parent_of("rft_model") == "preference_model"
        and parent_of("preference_model") == "second_sft_model"
        and parent_of("second_sft_model") == "sft_model"
        and parent_of("student_model") == "merged_model"
        and stage("quantized_model").switch == "quantize"
    )
    assert daily_stages() == ("interactions", "feedback", "cleaned_interactions", "drift_report")
    assert daily_stages(["drift_report"]) == ("interactions", "feedback", "cleaned_interactions")
    assert logs_stages(["drift_report"]) == ("interactions", "feedback", "cleaned_interactions", "traffic_digest")
    assert list(planned_sections()) == ["sft", "second_sft", "reward_model", "preference", "rft", "student"]
    assert parent_of("reward_model") == "second_sft_model" and stage("reward_model").off_chain
    assert artefact_stages()[-1].artefact_name == "release"
    with pytest.raises(KeyError, match="base_model starts from no other model"):
        parent_of("base_model")
    with pytest.raises(KeyError, match="traffic_report is no stage; there are logs, interactions"):
        stage("traffic_report")


def literal_lists(tree: ast.AST) -> list[set[str]]:
    """The texts that each list, tuple, set and dictionary of a file holds itself."""
    found = []
    for node in ast.walk(tree):
        items = (
            node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else node.keys if isinstance(node, ast.Dict) else []
        )
        found.append({item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)})
    return found


def test_no_other_file_lists_the_models():
    """An asset names what it reads in `deps`; nothing else writes down which models there are, or guesses by a name's end."""
    models = {found.name for found in model_chain()}
    for package in set(PACKAGES) - {"model_ops"}:  # its operations have names of their own
        for path in sorted((PROJECT / package).rglob("*.py")):
            if path in (TABLE, COMMENTS):
                continue
            text = path.read_text(encoding="utf-8")
            assert 'endswith("_model")' not in text, path
            for names in literal_lists(ast.parse(text)):
                assert len(names & models) < 2 and len(names & NAMES) < 5, f"{path} lists {sorted(names & NAMES)}"


@pytest.mark.slow
def test_a_stage_that_only_its_own_file_knows_goes_all_the_way(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.resources.stages.toy_stage", str(tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, process_report(done)
    seen = json.loads(done.stdout.splitlines()[-1])
    reads = ["length_report", "served_answers", "sft_dataset", "sft_model", "traffic_digest"]
    assert seen["parents"]["polished_model"] == reads and seen["job"] == ["dataset", "model", "served"]
    assert "polished_model" in seen["parents"]["student_model"] and "sft_model" not in seen["parents"]["student_model"]
    assert "polished_model" in seen["parents"]["evaluation_report"]
    assert seen["checks"] == ["polished_model_learnt_nothing_held_out"] and seen["off"] == [True, "sft_model"]
    assert ["polished", "sft"] in seen["compared"] and ["student", "polished"] in seen["compared"]
    assert seen["planned"] == "polish" and seen["plan"] == "full"
    assert seen["status"] and seen["seconds"] and seen["gains"] and seen["records"] == [True, True]
    assert "The model before it, polished." in seen["card"] and "3 steps over 30 tokens" in seen["page"]
    assert seen["left"] == ["r1"] and seen["digest_holds"], "an erasure takes rows of the model's own answers"


def test_the_stage_of_the_page_on_extending_can_be_declared(monkeypatch):
    page = (PROJECT / "docs" / "extending.md").read_text(encoding="utf-8").partition("## A stage\n")[2]
    line, asset, field = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (declared,) = eval(line, vars(table))
    monkeypatch.setattr(table, "STAGES", (*STAGES, declared))
    monkeypatch.setattr("assets.stage_asset.source_digest", lambda *sources: "0" * 64)
    names = {}
    exec(asset, names)
    [spec] = names["traffic_report"].specs
    assert (spec.group_name, [dep.asset_key.path[-1] for dep in spec.deps]) == (
        "release",
        ["curated_interactions", "sft_model"],
    )
    names["Field"] = Field
    exec(f"class Recipe(Settings):\n{field}", names)
    assert declared.switch in names["Recipe"].model_fields and declared.opt_in


OWN = (
    "pipelines/contract/",  # declares the recipe's keys
    "pipelines/init/recipe_text.py",  # writes a recipe
    "pipelines/demo/demo.py",  # fits values of the demo's recipe
    "resources/stages/table.py",
    "resources/composing/teachers/settings.py",  # teacher.trains and teacher.base
    "resources/deciding/",  # "preference" is an action of a decision
    "model_ops/operations/",  # operations with their settings
    "model_ops/preferences/",
    "model_ops/reinforcement/",
    "model_ops/speculators/",  # draft_model: student
)
"""Where a stage's section may stand as a text."""


def test_no_other_file_names_a_section_of_the_recipe():
    sections = {each.section for each in STAGES if each.section} - NAMES - {"tiny"}  # tiny: also a value of base_model
    assets = {name: {f"{each.file}.py" for each in STAGES if name in (each.section, each.operation)} for name in sections}
    named = [
        f"{path.relative_to(PROJECT)}:{node.lineno} {node.value}"
        for package in PACKAGES
        for path in sorted((PROJECT / package).rglob("*.py"))
        if not path.relative_to(PROJECT).as_posix().startswith(OWN)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in sections and path.name not in assets[node.value]
    ]
    assert sections >= {"sft", "rft", "preference", "student"} and named == []


def test_the_drawn_graph_has_every_stage():
    page = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [found.name for found in STAGES if found.name not in page] == []


def policy(*off, drafter_from=None):
    return ModelPolicy(frozenset(off), drafter_from)


def read_by(found: ModelPolicy, asset: str, model: str) -> str | None:
    """The model that `asset` reads in place of `model`; None if it reads none."""
    return next(iter(stage(asset).reads(found, stage(asset), model)), None)


@pytest.mark.parametrize("off", [(), ("merge",), ("student",), ("quantize",), ("merge", "student", "quantize")])
def test_each_stage_starts_from_the_one_before(off):
    found = policy(*off)
    assert read_by(found, "speculator", "student_model") is None
    for before, name in itertools.pairwise(found.stages):
        assert found.source_of(name) == before
    assert found.served == found.stages[-1]
    for gone in found.disabled:
        assert found.source_of(gone) in found.stages
        assert read_by(found, "evaluation_report", gone) == found.source_of(gone)


def test_a_switch_turns_off_every_stage_that_has_it():
    assert policy().disabled == [] and policy().speculator
    assert policy("speculator").disabled == ["speculator_dataset", "speculator"]
    assert not policy("speculator").speculator
    assert policy("curation.judge").disabled == ["judgements"]


def test_the_reference_is_the_served_model_before_quantization():
    assert policy().reference == "student_model"
    assert policy("student").reference == "merged_model"
    assert policy("student", "merge", "preference", "rft", "second_sft").reference == "sft_model"
    assert policy("quantize").reference == "student_model"


def test_a_student_that_is_off_is_replaced_by_its_teacher():
    assert policy("student").source_of("quantized_model") == "merged_model"
    assert policy("student", "merge", "preference", "rft", "second_sft").source_of("quantized_model") == "sft_model"
    assert (
        read_by(policy("student", "merge", "preference", "rft", "second_sft"), "quantized_model", "student_model")
        == "sft_model"
    )


def test_a_merge_reads_its_parent_and_the_base_model():
    found = policy("second_sft", "preference", "rft")
    assert (
        read_by(found, "merged_model", "sft_model") == "sft_model"
        and read_by(found, "merged_model", "base_model") == "base_model"
    )
    assert (
        read_by(found, "student_model", "merged_model") == "merged_model" and found.source_of("student_model") == "merged_model"
    )
    assert read_by(policy("sft", "second_sft", "preference"), "merged_model", "sft_model") == "base_model"


@pytest.mark.parametrize("quantized", [True, False])
def test_a_student_that_drafts_is_no_stage_before_what_is_served(quantized):
    found = policy(
        "merge", "preference", "rft", "second_sft", *([] if quantized else ["quantize"]), drafter_from="student_model"
    )
    assert "student_model" not in found.stages and "student_model" not in found.disabled
    assert found.drafting_model == "student_model" and found.source_of("student_model") == "sft_model"
    assert found.served == ("quantized_model" if quantized else "sft_model") and found.reference == "sft_model"
    assert read_by(found, "speculator", "student_model") == "student_model"
    assert read_by(found, "evaluation_report", "student_model") == "student_model"
    assert not quantized or read_by(found, "quantized_model", "student_model") == "sft_model"
    assert read_by(found, "speculator", "quantized_model") == found.served


def test_a_base_whose_own_layer_drafts_is_read_by_the_drafter():
    found = policy(drafter_from="base_model")
    assert read_by(found, "speculator", "base_model") == "base_model" and found.drafting_model is None
    assert read_by(policy(), "speculator", "base_model") is None
    assert read_by(policy(), "evaluation_report", "base_model") == "base_model"


def test_the_first_model_starts_from_none():
    with pytest.raises(ValueError, match="base_model starts from no other model"):
        policy().source_of("base_model")
