"""The whole graph at toy size, through Dagster, by the command line, as a stranger would run it."""

import json
import shutil

import pyarrow.parquet as pq
import pytest

from pipelines.running.instance import fail_dead_runs, open_instance
from resources.artefacts.registry import Registry
from resources.endpoints.approvals import approvals_of
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import describe_files, files_digest

pytestmark = pytest.mark.xdist_group("whole graph")  # a second process would wait for the toy that the first one makes

MODELS = ("base_model", "sft_model", "student_model", "quantized_model", "speculator")
DATASETS = (
    "eval_suite",
    "seed_examples",
    "curated_interactions",
    "sft_dataset",
    "served_answers",
    "speculator_dataset",
    "evaluation_report",
)


def rows(cli, lake, statement):
    return json.loads(cli("sql", statement, "--lake", lake, "--format", "json").stdout)


def test_every_stage_left_an_artefact_whose_files_are_what_its_manifest_says(toy):
    registry = Registry(LakeLayout.open(toy.lake), toy.workload)
    for kind, names in (("model", MODELS), ("dataset", DATASETS), ("release", ("release",))):
        for name in names:
            manifest = registry.current(kind, name)
            directory = registry.directory(manifest)
            assert files_digest(describe_files(directory), kind) == manifest.digest, name
            assert kind == "dataset" or (directory / "README.md").exists(), name
            assert manifest.inputs or name in ("base_model",)
            assert not (directory / ".work").exists()


def test_records_read_are_kept_dropped_or_quarantined(toy, cli):
    planted = json.loads((toy.home / "traffic" / "planted.json").read_text())
    report = (toy.lake / "releases" / toy.workload).glob("*/report.md")
    assert "read" in next(report).read_text()
    kept = rows(cli, toy.lake, "select count(*) n from decisions where stage = 'curate' and kept")[0]["n"]
    dropped = rows(cli, toy.lake, "select count(*) n from decisions where stage in ('ingest','clean','curate') and not kept")
    quarantined = rows(cli, toy.lake, "select count(*) n from quarantine")[0]["n"]
    assert kept + dropped[0]["n"] + quarantined == planted["records"]
    assert quarantined >= sum(planted["malformed"].values()) * 0.5
    assert kept > 100


def test_everything_in_the_catalog_says_what_it_is(toy, cli):
    without = (
        "select relation, null as column_name from relations where comment is null union all "
        "select relation, column_name from relation_columns where comment is null"
    )
    assert rows(cli, toy.lake, without) == []


def test_no_file_of_rows_holds_the_sentences_of_its_columns(toy):
    files = [*(toy.lake / "datasets").rglob("*.parquet"), *(toy.lake / "tables").rglob("*.parquet")]
    assert len(files) > 20
    assert [file for file in files if any(field.metadata for field in pq.read_schema(file))] == []


def test_planted_mess_is_caught(toy, cli):
    planted = json.loads((toy.home / "traffic" / "planted.json").read_text())
    by_rule = {
        (row["stage"], row["rule"]): row["n"]
        for row in rows(cli, toy.lake, "select stage, rule, count(*) n from decisions where not kept group by all")
    }
    assert by_rule[("ingest", "repeated_record")] == planted["repeated_lines"]
    assert sum(count for (stage, _), count in by_rule.items() if stage == "clean") >= planted["failed"] + planted["truncated"]
    text = "select count(*) n from cleaned_interactions where contains(messages || completion, ?)"
    for secret in [*planted["emails"][:2], *planted["cards"][:2]]:
        found = rows(cli, toy.lake, text.replace("?", f"'{secret}'"))
        assert found[0]["n"] == 0


def test_lineage_goes_from_the_release_to_the_log_lines(toy, cli):
    release = Registry(LakeLayout.open(toy.lake), toy.workload).current("release", "release")
    tree = cli("lineage", release.version, "--lake", toy.lake).stdout
    for name in (*MODELS, "sft_dataset", "curated_interactions", "cleaned_interactions"):
        assert name in tree


def test_verify_agrees_with_what_was_published_and_notices_one_changed_byte(toy, cli, tmp_path):
    registry = Registry(LakeLayout.open(toy.lake), toy.workload)
    for kind, name in (
        ("model", "quantized_model"),
        ("model", "speculator"),
        ("release", "release"),
        ("dataset", "sft_dataset"),
    ):
        cli("verify", registry.directory(registry.current(kind, name)))
    copy = tmp_path / "copy"
    shutil.copytree(registry.directory(registry.current("model", "quantized_model")), copy)
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert "model.safetensors" in cli("verify", copy, check=1).stdout


def test_a_second_run_makes_nothing_again(toy, cli):
    registry = Registry(LakeLayout.open(toy.lake), toy.workload)
    before = {name: registry.current("model", name) for name in MODELS}
    cli("run", toy.recipe, "--lake", toy.lake)
    assert {name: registry.current("model", name) for name in MODELS} == before
    versions = list((toy.lake / "models" / toy.workload / "sft_model").glob("*/manifest.json"))
    assert len(versions) == 1


def test_part_of_the_graph_for_one_day(toy, cli):
    done = cli("run", toy.recipe, "--lake", toy.lake, "--select", "cleaned_interactions", "--partition", "2026-06-02")
    assert "cleaned_interactions" in done.stdout
    assert "sft_model" not in done.stdout


@pytest.mark.thorough
def test_one_day_of_a_new_lake_adds_up_though_late_lines_belong_to_another_day(toy, cli, tmp_path):
    cli("run", toy.recipe, "--lake", tmp_path / "lake", "--select", "+curated_interactions", "--partition", "2026-06-02")
    found = rows(cli, tmp_path / "lake", "select dt, count(*) n from interactions group by dt order by dt")
    decided = rows(cli, tmp_path / "lake", "select count(*) n from decisions where stage = 'clean'")
    assert found[-1]["dt"] == "2026-06-02"
    assert decided[0]["n"] == sum(day["n"] for day in found)


def test_the_candidate_waits_for_a_person_then_is_approved_and_rolled_back(toy, cli, tmp_path):
    lake = tmp_path / "lake"
    shutil.copytree(toy.lake, lake)
    endpoint = Endpoint(LakeLayout.open(lake), toy.workload)
    release = endpoint.read().candidate
    assert endpoint.read().champion is None
    cli("approve", release[:6], "--lake", lake)
    assert endpoint.read().champion == release
    assert "no previous release" in cli("rollback", toy.workload, "--lake", lake, check=1).stderr
    other = lake / "releases" / toy.workload / "another"
    shutil.copytree(other.with_name(release), other)
    cli("approve", "another", "--lake", lake)
    assert (endpoint.read().champion, endpoint.read().previous) == ("another", release)
    cli("rollback", toy.workload, "--lake", lake)
    assert (endpoint.read().champion, endpoint.read().previous) == (release, "another")
    assert approvals_of(LakeLayout.open(lake), other).missing
    assert not approvals_of(LakeLayout.open(lake), other.with_name(release)).missing


def test_a_release_whose_weights_changed_cannot_be_approved(toy, cli, tmp_path):
    lake = tmp_path / "lake"
    shutil.copytree(toy.lake, lake)
    registry = Registry(LakeLayout.open(lake), toy.workload)
    weights = registry.directory(registry.current("model", "quantized_model")) / "model.safetensors"
    weights.write_bytes(
        weights.read_bytes()[:-1] + b"\x00" if weights.read_bytes()[-1:] != b"\x00" else weights.read_bytes()[:-1] + b"\x01"
    )
    release = registry.current("release", "release").version
    assert "not those the release was made from" in cli("approve", release, "--lake", lake, check=1).stderr
    assert Endpoint(LakeLayout.open(lake), toy.workload).read().champion is None


def test_dagster_history_shows_every_asset_materialized_and_every_check_passed(toy):
    import dagster as dg

    instance = open_instance(LakeLayout.open(toy.lake))
    for name in (*MODELS, *DATASETS, "release_candidate"):
        assert instance.get_latest_materialization_event(dg.AssetKey([toy.workload, name])) is not None, name
    days = instance.get_materialized_partitions(dg.AssetKey([toy.workload, "interactions"]))
    assert days == {"2026-06-01", "2026-06-02"}
    assert fail_dead_runs(instance) == []


@pytest.mark.parametrize(
    "words, code, said",
    [
        (["sql", "selec 1"], 2, "syntax error"),
        (["sql", "drop view interactions"], 2, ""),
        (["lineage", "toy-assistant/no_such_model"], 2, "no_such_model"),
        (["approve", "zzzz"], 2, "names no release"),
    ],
)
def test_misuse_is_one_sentence(toy, cli, words, code, said):
    done = cli(*words, "--lake", toy.lake, check=code)
    assert "Traceback" not in done.stderr
    assert said in done.stderr
