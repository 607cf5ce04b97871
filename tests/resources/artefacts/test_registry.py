"""The registry: same inputs, same version; a manifest makes an artefact exist; what a killed run left is kept."""

import json

import pytest

from resources.artefacts.registry import Registry, StaleInput, causes_of, current_manifests, stale_inputs
from resources.lake.lake import LakeError, LakeLayout
from resources.manifests.manifest import (
    Code,
    Input,
    Manifest,
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


def made(name, digest, *inputs, kind="dataset", version=None):
    return Manifest(
        kind=kind,
        name=f"tutor/{name}",
        version=version or f"v-{digest}",
        digest=digest,
        inputs=list(inputs),
        op=name,
        config={},
        code=Code(revision="r", dirty=False),
        environment={},
        files=[],
    )


def chain(rows="rows-1", read="rows-1"):
    """curated -> sft_dataset -> sft_model; sft_dataset read the curated rows with digest `read`."""
    curated = made("curated", rows, Input(kind="table", name="interactions", digest="t1"))
    dataset = made("sft_dataset", "d1", Input(kind="dataset", name="tutor/curated", version=f"v-{read}", digest=read))
    model = made("sft_model", "m1", dataset.as_input(), kind="model")
    return {"curated": curated, "sft_dataset": dataset, "sft_model": model}


def test_nothing_is_stale_where_every_input_is_current():
    assert stale_inputs(chain()) == {}


def test_another_version_with_the_same_content_is_no_change():
    manifests = chain()
    manifests["curated"] = manifests["curated"].model_copy(update={"version": "remade"})
    assert stale_inputs(manifests) == {}


def test_a_changed_parent_makes_its_children_stale_and_theirs():
    stale = stale_inputs(chain(rows="rows-2"))
    assert list(stale) == ["sft_dataset", "sft_model"]
    [changed] = stale["sft_dataset"]
    assert (changed.reason, changed.name, changed.version, changed.current_version) == (
        "changed",
        "tutor/curated",
        "v-rows-1",
        "v-rows-2",
    )
    assert str(changed) == "made from curated v-rows-1, current is v-rows-2"
    [parent] = stale["sft_model"]
    assert (parent.reason, parent.kind, parent.digest) == ("stale", "dataset", "d1")
    assert str(parent) == "sft_dataset v-d1 is stale itself"


def test_a_pinned_input_is_never_stale():
    """The champion that an evaluation compared with is an earlier version on purpose."""
    manifests = chain()
    older = Input(kind="model", name="tutor/sft_model", version="v-m0", digest="m0", pinned=True)
    manifests["evaluation_report"] = made("evaluation_report", "e1", manifests["sft_model"].as_input(), older)
    assert stale_inputs(manifests) == {}
    manifests["evaluation_report"] = made("evaluation_report", "e1", older.model_copy(update={"pinned": False}))
    assert list(stale_inputs(manifests)) == ["evaluation_report"]


def test_a_kept_input_is_compared_with_the_current_one_but_not_with_what_is_behind_it():
    """A drafter's target is taken as it is while only the drafter learns new rows."""
    manifests = chain(rows="rows-2")  # the model is stale
    kept = manifests["sft_model"].as_input().model_copy(update={"taken_as_is": True})
    manifests["speculator"] = made("speculator", "s1", kept, kind="model")
    assert "speculator" not in stale_inputs(manifests)
    manifests["sft_model"] = made("sft_model", "m2", kind="model")
    [changed] = stale_inputs(manifests)["speculator"]
    assert changed.reason == "changed"


def test_a_parent_that_is_gone_is_said():
    manifests = chain()
    del manifests["curated"]
    [gone] = stale_inputs(manifests)["sft_dataset"]
    assert gone.reason == "gone" and "has no current version" in str(gone)


@pytest.mark.parametrize(("now", "stale"), [("t1", []), ("t2", ["curated", "sft_dataset", "sft_model"]), (None, [])])
def test_tables_are_compared_where_somebody_can_digest_them(now, stale):
    assert list(stale_inputs(chain(), lambda manifest, item: now if item.kind == "table" else None)) == stale


def test_what_an_artefact_went_on_from_is_no_input_that_could_be_stale():
    drafter = made("speculator", "s2", Input(kind="model", name="tutor/speculator", version="v-s1", digest="s1"), kind="model")
    assert stale_inputs({"speculator": drafter}) == {}


def test_artefacts_that_name_each_other_end():
    one = made("one", "1", Input(kind="dataset", name="tutor/two", digest="2"))
    two = made("two", "2", Input(kind="dataset", name="tutor/one", digest="1"))
    assert stale_inputs({"one": one, "two": two}) == {}


def test_current_manifests_are_read_from_a_lake_and_broken_ones_left_out(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    registry = Registry(lake, "tutor")
    for kind, name in (("dataset", "curated"), ("model", "sft_model"), ("release", "release")):
        draft = registry.draft(kind, name, "op", ("model_ops/jobs/job.py",), {}, [])
        (draft.directory / "file").write_text(name)
        registry.finish(draft, {})
    assert set(current_manifests(lake, "tutor")) == {"curated", "sft_model", "release"}
    (lake.artefacts("dataset") / "tutor" / "curated" / "current.json").write_text("{")
    assert set(current_manifests(lake, "tutor")) == {"sft_model", "release"}
    assert current_manifests(lake, "another") == {}


def test_what_was_made_from_an_outdated_artefact_is_stale():
    stale = stale_inputs(chain(), outdated={"sft_dataset"})
    assert {name: [item.reason for item in items] for name, items in stale.items()} == {"sft_model": ["stale"]}


def test_the_cause_that_is_furthest_back_comes_first():
    """speculator is out of date by itself and by its dataset: the dataset has to be made again first."""
    of = {
        "kind": "model",
        "name": "w/quantized_model",
        "version": "1",
        "digest": "1",
        "reason": "changed",
        "current_version": "2",
    }
    dataset = {"kind": "dataset", "name": "w/speculator_dataset", "version": "1", "digest": "1", "reason": "stale"}
    stale = {"speculator": [StaleInput(**of), StaleInput(**dataset)], "speculator_dataset": [StaleInput(**of)]}
    assert [artefact for artefact, _ in causes_of("speculator", stale)] == ["speculator_dataset", "speculator"]


def test_only_what_is_behind_an_artefact_is_read(tmp_path, monkeypatch):
    import resources.artefacts.registry as current

    registry = Registry(LakeLayout.open(tmp_path / "lake"), "tutor")

    def make(name, *inputs):
        draft = registry.draft("model", name, name, ("model_ops/jobs/job.py",), {}, [item.as_input() for item in inputs])
        (draft.directory / "config.json").write_text(name)
        return registry.finish(draft, {})

    base = make("base_model")
    sft = make("sft_model", base)
    make("student_model", sft)
    make("unrelated")
    read, original = [], current.read_manifest
    monkeypatch.setattr(
        current, "read_manifest", lambda directory: (read.append(directory.parent.name), original(directory))[1]
    )
    assert current.up_to_date(registry, "model", "sft_model") == sft
    assert read == ["sft_model", "base_model"]
