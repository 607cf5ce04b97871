"""`millrace rebuild`: the same version again, beside the lake, byte by byte."""

import json
import shutil

import pytest

from resources.manifests.manifest import RUN_RECORDS, describe_files
from tests.thorough_cases import thorough_except

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rebuild")]


def rebuilt(cli, toy, artefact, *words, check=0):
    return cli("rebuild", f"{toy.workload}/{artefact}", "--lake", toy.lake, *words, check=check)


@pytest.mark.parametrize(
    "artefact", thorough_except(["sft_dataset", "release"], ["curated_interactions", "sft_dataset", "seed_examples", "release"])
)
def test_an_artefact_is_made_again_with_the_same_bytes(toy, cli, tmp_path, artefact):
    before = describe_files(toy.lake / "tables"), (toy.lake / "catalog.duckdb").read_bytes()
    done = rebuilt(cli, toy, artefact, "--into", tmp_path / "again", "--format", "json")
    rows = json.loads(done.stdout)
    assert {row["bytes_of_the_second"] for row in rows if row["file"] not in RUN_RECORDS} == {"same"}
    group = "releases" if artefact == "release" else "datasets"
    made = [path for path in (tmp_path / "again" / group / toy.workload).rglob("manifest.json") if not path.is_symlink()]
    assert len(made) == 1, "it was made, not linked"
    assert before == (describe_files(toy.lake / "tables"), (toy.lake / "catalog.duckdb").read_bytes()), "the lake changed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "artefact",
    ["sft_model", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("quantized_model", "speculator_dataset"))],
)
def test_weights_are_made_again_with_the_same_bytes(toy, cli, artefact):
    assert "every byte the same" in rebuilt(cli, toy, artefact).stdout


def test_a_file_that_changed_is_named(toy, cli, tmp_path):
    lake = shutil.copytree(toy.lake, tmp_path / "lake", symlinks=True)
    [home] = (lake / "datasets" / toy.workload / "sft_dataset").glob("*/manifest.json")
    manifest = json.loads(home.read_text())
    [train] = [file for file in manifest["files"] if file["path"] == "train.parquet"]
    train["sha256"] = "0" * 64
    home.write_text(json.dumps(manifest))
    done = cli("rebuild", f"{toy.workload}/sft_dataset", "--lake", lake, check=1)
    assert "1 file of" in done.stdout and "not the same" in done.stdout


def test_what_would_be_another_version_is_not_made_and_says_why(toy, cli, tmp_path):
    other = toy.home / "other.yaml"
    other.write_text(toy.recipe.read_text().replace("test_share: 0.15", "test_share: 0.25"))
    try:
        done = rebuilt(cli, toy, "sft_dataset", "--recipe", other, "--into", tmp_path / "again", check=2)
    finally:
        other.unlink()
    assert "the setting test_share is 0.25 and was 0.15" in done.stderr
    assert not list((tmp_path / "again" / "datasets" / toy.workload).glob("sft_dataset/*"))


def test_misuse_is_one_sentence(toy, cli, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    for words, said in (
        (["--into", tmp_path / "full"], "is not empty"),
        (["--into", toy.lake / "again"], "lies in the lake"),
        (["--recipe", tmp_path / "none.yaml"], "--recipe FILE"),
    ):
        done = rebuilt(cli, toy, "sft_dataset", *words, check=2)
        assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert "no artefact" in rebuilt(cli, toy, "nothing", check=2).stderr
    assert not (toy.lake / "again").exists()


def test_an_input_that_is_gone_is_named(toy, cli, tmp_path):
    lake = shutil.copytree(toy.lake, tmp_path / "lake", symlinks=True)
    shutil.rmtree(lake / "datasets" / toy.workload / "seed_examples")
    done = cli("rebuild", f"{toy.workload}/sft_dataset", "--lake", lake, check=1)
    assert "seed_examples@" in done.stderr and "not in the lake any more" in done.stderr
