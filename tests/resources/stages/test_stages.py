"""The table of stages: it agrees with the assets, nothing else lists them, and a new stage is one line and one asset file."""

import ast
import json
import re
import shutil
import subprocess
import sys
from importlib import import_module

import dagster as dg
import pytest

from resources.digests.code import PACKAGES
from resources.stages.table import STAGES, artefact_stages, daily_stages, logs_stages, model_chain, parent_of, sections, stage
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
    assert list(sections()) == ["sft", "second_sft", "reward_model", "preference", "rft", "student"]
    assert parent_of("reward_model") == "second_sft_model" and stage("reward_model").is_beside
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


LINE = '    Stage("aligned_model", "model", "models", "sft", role="aligned", takes_model_as="model", reads=rows_it_learns),\n'
BEFORE = '    Stage("student_model"'
FIELD_BEFORE = "    student: StudentSettings = Field("
SCRIPT = """
import json
from pathlib import Path
import pipelines.definitions as definitions
from pipelines.contract.recipe import load_recipe
from pipelines.planning.stage_times import Speed, TrafficSize, stage_seconds
from pipelines.status.lake_status import STEPS
from resources.stages.model_policy import ModelPolicy

recipe = load_recipe(Path("recipes/demo.yaml"))
graph = definitions.demo.resolve_asset_graph()
read = {key.path[-1]: sorted(parent.path[-1] for parent in graph.get(key).parent_keys) for key in graph.get_all_asset_keys()}
print(json.dumps({"read": read, "way": ModelPolicy().stages, "status": list(STEPS), "seconds": list(stage_seconds(recipe, Speed(100.0, "float32"), TrafficSize(100, 100)))}))

from pipelines.graph.recipe_graph import definitions as graph_of

def choices(name, more):
    path = Path(name)
    path.write_text("workload: w\\nbase_model: tiny\\nsources: {gateway: {uri: logs}}\\nfirst_day: 2026-06-01\\n" + more)
    graph = graph_of(path, Path("lake"))
    read = graph.resolve_asset_graph()
    found = {key.path[-1]: sorted(parent.path[-1] for parent in read.get(key).parent_keys) for key in read.get_all_asset_keys()}
    return {stage: found[stage] for stage in ("aligned_model", "traffic_report") if stage in found} | {
        "settings": "traffic_report_settings" in graph.resources}

print(json.dumps([choices("plain.yaml", ""), choices("more.yaml", "traffic_report: {}\\nsft: {enabled: false}\\n")]))
"""


@pytest.mark.slow
def test_a_new_stage_is_one_line_and_one_asset_file(tmp_path):
    """Also the one of docs/extending.md, which has a section of its own in the recipe."""
    for package in PACKAGES:
        if package in ("assets", "resources", "pipelines"):
            shutil.copytree(PROJECT / package, tmp_path / package)  # with what Python and numba compiled
        else:
            (tmp_path / package).symlink_to(PROJECT / package)
    page = (PROJECT / "docs" / "extending.md").read_text(encoding="utf-8").partition("## A stage\n")[2]
    line, file, field = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for path, before, added in (
        ("resources/stages/table.py", BEFORE, LINE + f"    {line}"),
        ("pipelines/contract/fields.py", FIELD_BEFORE, field),
    ):
        text = (tmp_path / path).read_text()
        assert before in text
        (tmp_path / path).write_text(text.replace(before, added + before, 1))
    (tmp_path / "assets" / "traffic_report.py").write_text(file)
    asset = (tmp_path / "assets" / "sft_model.py").read_text().replace("sft_model", "aligned_model")
    (tmp_path / "assets" / "aligned_model.py").write_text(asset)
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, process_report(done)
    seen, (plain, more) = map(json.loads, done.stdout.splitlines()[-2:])
    assert seen["read"]["aligned_model"] == ["length_report", "served_answers", "sft_dataset", "sft_model", "traffic_digest"]
    assert "aligned_model" in seen["read"]["student_model"] and "sft_model" not in seen["read"]["student_model"]
    assert "aligned_model" in seen["read"]["evaluation_report"]
    assert seen["way"] == [
        "base_model",
        "sft_model",
        "second_sft_model",
        "preference_model",
        "rft_model",
        "merged_model",
        "aligned_model",
        "student_model",
        "quantized_model",
    ]
    assert "aligned_model" in seen["status"] and "aligned_model" in seen["seconds"]
    assert "traffic_report" not in plain and not plain["settings"]
    assert more["traffic_report"] == ["base_model", "curated_interactions", "traffic_digest"] and more["settings"]
    assert plain["aligned_model"] == seen["read"]["aligned_model"]
    assert more["aligned_model"] == ["base_model", "length_report", "served_answers", "sft_dataset", "traffic_digest"]


def test_the_drawn_graph_has_every_stage():
    page = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [found.name for found in STAGES if found.name not in page] == []
