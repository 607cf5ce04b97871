"""The student as the drafter of its teacher, through the graph: a recipe of the toy lake that says so."""

import json
import shutil

from resources.lake import Lake
from resources.registry import Registry


def test_the_student_drafts_for_its_teacher(toy, cli, tmp_path):
    """The lake's earlier stages are taken as they are; teacher, drafter, report and release are made for the new recipe."""
    lake, recipe = tmp_path / "lake", tmp_path / "toy.yaml"
    shutil.copytree(toy.lake, lake)
    (tmp_path / "traffic").symlink_to(toy.home / "traffic")
    recipe.write_text(toy.recipe.read_text().replace("  ttt_steps: 2\n", "  architecture: draft_model\n"))
    before = Registry(Lake.open(lake), toy.workload).current("model", "student_model")
    cli("run", recipe, "--lake", lake, "--select", "quantized_model,speculator_dataset,speculator,evaluation_report,"
        "release_candidate")
    registry = Registry(Lake.open(lake), toy.workload)
    student, teacher, drafter = (registry.current("model", name) for name in ("student_model", "sft_model", "speculator"))
    served = registry.current("model", "quantized_model")
    assert student == before
    assert {item.digest for item in served.inputs} == {teacher.digest}
    assert {student.digest, served.digest} < {item.digest for item in drafter.inputs}
    report = json.loads((registry.directory(registry.current("dataset", "evaluation_report")) / "report.json").read_text())
    assert {"none", "ngram", "suffix", "draft_model", "draft_model_untrained"} == {
        found["drafter"] for found in report["acceptance"]}
    assert set(report["models"]) == {"base", "sft", "student", "quantized"}
    release = registry.directory(registry.current("release", "release"))
    written = json.loads((release / "release.json").read_text())
    assert written["architecture"] == "draft_model" and written["speculator"]["digest"] == drafter.digest
    assert {gate["name"] for gate in written["gates"]} == {"recovery", "acceptance_length"}
    assert '\\"method\\": \\"draft_model\\"' in (release / "serve-vllm.sh").read_text()
    assert "served beside its target" in (release / "report.md").read_text()
    cli("verify", release)
