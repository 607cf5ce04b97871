"""Freshness: an artefact is stale where an input of its own, or of a parent, is no longer the current one."""

import pytest

from resources.artefacts.registry import Registry, StaleInput, causes_of, current_manifests, stale_inputs
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import Code, Input, Manifest


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
        "changed", "tutor/curated", "v-rows-1", "v-rows-2",
    )  # fmt: skip
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
        draft = registry.draft(kind, name, "op", ("model_ops/jobs/errors.py",), {}, [])
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
        "kind": "model", "name": "w/quantized_model", "version": "1", "digest": "1", "reason": "changed",
        "current_version": "2",
    }  # fmt: skip
    dataset = {"kind": "dataset", "name": "w/speculator_dataset", "version": "1", "digest": "1", "reason": "stale"}
    stale = {"speculator": [StaleInput(**of), StaleInput(**dataset)], "speculator_dataset": [StaleInput(**of)]}
    assert [artefact for artefact, _ in causes_of("speculator", stale)] == ["speculator_dataset", "speculator"]


def test_only_what_is_behind_an_artefact_is_read(tmp_path, monkeypatch):
    import resources.artefacts.registry as current

    registry = Registry(LakeLayout.open(tmp_path / "lake"), "tutor")

    def make(name, *inputs):
        draft = registry.draft("model", name, name, ("model_ops/jobs/errors.py",), {}, [item.as_input() for item in inputs])
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
    assert read == ["base_model"]
