"""The registry: same inputs, same version; a manifest makes an artefact exist; what a killed run left is kept."""

import json

import pytest

from resources.artefacts.registry import Registry
from resources.lake.lake import LakeError, LakeLayout
from resources.manifests.manifest import (
    Input,
    ManifestError,
    changed_files,
    describe_files,
    digest_holds,
    files_digest,
    read_manifest,
)

OUTSIDE = Input(kind="external", name="corpus", digest="d1")


@pytest.fixture
def registry(tmp_path):
    return Registry(LakeLayout.open(tmp_path / "lake"), "math-tutor", recipe_digest="r")


def draft(registry, config=None, inputs=(OUTSIDE,)):
    return registry.draft("model", "sft_model", "sft", ("model_ops/jobs/job.py",), config or {"steps": 3}, list(inputs))


def test_same_inputs_same_version_and_another_input_another_version(registry):
    first = draft(registry)
    assert draft(registry).version == first.version
    assert len(first.version) == 12
    assert draft(registry, {"steps": 4}).version != first.version
    assert draft(registry, inputs=[OUTSIDE.model_copy(update={"digest": "d2"})]).version != first.version


def test_a_directory_without_manifest_is_no_artefact_and_keeps_its_files(registry):
    unfinished = draft(registry)
    (unfinished.directory / "half.safetensors").write_bytes(b"half")
    again = draft(registry)
    assert again.finished is None
    assert (again.directory / "half.safetensors").read_bytes() == b"half"
    with pytest.raises(ManifestError, match="materialize sft_model first"):
        registry.current("model", "sft_model")


def test_finish_records_files_and_lineage_and_drops_scratch(registry):
    making = draft(registry)
    (making.directory / "model.safetensors").write_bytes(b"weights")
    (making.directory / ".work").mkdir()
    (making.directory / ".work" / "checkpoint").write_text("x")
    manifest = registry.finish(making, {"loss": 1.5})
    assert [file.path for file in manifest.files] == ["model.safetensors"]
    assert not (making.directory / ".work").exists()
    assert manifest.name == "math-tutor/sft_model"
    assert manifest.inputs == [OUTSIDE]
    assert manifest.digest == files_digest(describe_files(making.directory))
    assert registry.current("model", "sft_model") == manifest
    assert draft(registry).finished == manifest


def test_current_follows_the_version_confirmed_last(registry):
    versions = []
    for steps in (1, 2):
        making = draft(registry, {"steps": steps})
        (making.directory / "file").write_text(str(steps))
        versions.append(registry.finish(making, {}).version)
    assert registry.current("model", "sft_model").version == versions[1]
    draft(registry, {"steps": 1})
    assert registry.current("model", "sft_model").version == versions[0]


def test_an_operation_that_left_nothing_is_an_error(registry):
    with pytest.raises(ManifestError, match="left no files"):
        registry.finish(draft(registry), {})


def test_a_broken_manifest_names_its_field(registry):
    making = draft(registry)
    (making.directory / "file").write_text("x")
    registry.finish(making, {})
    path = making.directory / "manifest.json"
    record = json.loads(path.read_text())
    del record["digest"]
    path.write_text(json.dumps(record))
    with pytest.raises(ManifestError, match="field digest"):
        read_manifest(making.directory)


def test_a_lake_of_another_layout_is_refused_and_left_alone(tmp_path):
    (tmp_path / "lake").mkdir()
    marker = tmp_path / "lake" / "lake.json"
    marker.write_text('{"layout_version": 99}')
    with pytest.raises(LakeError, match="layout version 99"):
        LakeLayout.open(tmp_path / "lake")
    assert marker.read_text() == '{"layout_version": 99}'


@pytest.mark.parametrize(
    "place, words", [("file.txt", "is a file"), ("full", "is not empty"), ("gs://b/x", "a lake is a local directory or s3:")]
)
def test_places_that_cannot_be_a_lake(tmp_path, place, words):
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(LakeError, match=words):
        LakeLayout.open(place if "://" in place else tmp_path / place)


def test_reading_a_lake_that_does_not_exist_creates_nothing(tmp_path):
    with pytest.raises(LakeError, match="no lake at"):
        LakeLayout.open(tmp_path / "nowhere", create=False)
    assert not (tmp_path / "nowhere").exists()


def test_a_digest_is_of_what_was_made_not_of_how_long_it_took(tmp_path):
    def train(lake, seconds):
        draft = Registry(LakeLayout.open(tmp_path / lake), "tutor").draft(
            "model", "sft_model", "sft", ("model_ops/jobs/job.py",), {}, []
        )
        (draft.directory / "model.safetensors").write_bytes(b"weights")
        (draft.directory / "metrics.jsonl").write_text(f'{{"step": 1, "tokens_per_second": {seconds}}}\n')
        return draft.directory, Registry(LakeLayout.open(tmp_path / lake), "tutor").finish(draft, {"seconds": seconds})

    (here, first), (_, second) = train("a", 1), train("b", 2)
    assert first.digest == second.digest and first.version == second.version
    assert changed_files(here, first) == []
    (here / "metrics.jsonl").write_text("")
    assert changed_files(here, first) == ["metrics.jsonl"], "tampering with a record of the run is noticed all the same"
    (here / "model.safetensors").write_bytes(b"Weights")
    assert changed_files(here, first) == ["metrics.jsonl", "model.safetensors"]


def test_a_manifest_whose_digest_was_edited_is_noticed(tmp_path):
    registry = Registry(LakeLayout.open(tmp_path / "lake"), "tutor")
    draft = registry.draft("model", "sft_model", "sft", ("model_ops/jobs/job.py",), {}, [])
    (draft.directory / "model.safetensors").write_bytes(b"weights")
    (draft.directory / "metrics.jsonl").write_text("{}\n")
    manifest = registry.finish(draft, {})
    assert digest_holds(manifest)
    assert not digest_holds(manifest.model_copy(update={"digest": "0" * 64}))
