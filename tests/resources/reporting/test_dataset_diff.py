"""What differs between two versions of a dataset, and held-out rows in training behind an artefact."""

import pytest
from curated_rows import built, curated, row

from resources.artefacts.registry import Registry
from resources.composing.dataset_settings import DatasetSettings
from resources.composing.held_out import held_out_in_training
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reporting.dataset_diff import DiffError, compare_versions, diff_summary

SOURCES = ("resources/reporting/dataset_diff.py",)


@pytest.fixture
def registry(tmp_path):
    return Registry(LakeLayout.open(tmp_path / "lake"), "tutor")


def version(registry, tmp_path, rows, settings, name="sft_dataset", inputs=()):
    config = {"rows": len(rows), **settings.model_dump(mode="json")}
    draft = registry.draft("dataset", name, "build", SOURCES, config, list(inputs))
    built(curated(tmp_path / "curated.parquet", rows), draft.directory, settings, tables=Tables(registry.lake))
    return registry.finish(draft, {})


ROWS = [row(n, f"question {n}", f"answer {n}", source="gateway" if n % 2 else "litellm") for n in range(60)]
FIRST = DatasetSettings(test_share=0.3, validation_share=0.1)


def test_rows_added_removed_and_moved_by_source_and_reason(registry, tmp_path):
    old = version(registry, tmp_path, ROWS[:40], FIRST)
    with pytest.raises(DiffError, match=f"has one version, {old.version}: there is nothing to compare it with"):
        compare_versions(registry.lake, "sft_dataset")
    new = version(registry, tmp_path, ROWS[10:], FIRST.model_copy(update={"test_share": 0.05, "max_rows": 20}))
    found = compare_versions(registry.lake, "tutor/sft_dataset", each_row=True)
    assert (found.old, found.new) == (old.version, new.version)
    rows = {each["row_id"]: each for each in found.each_row.to_pylist()}
    assert {rows[f"i{n}"]["reason"] for n in range(10)} == {"no longer curated"}
    sampled_out = [name for name, each in rows.items() if each["reason"] == "sampled_out"]
    moved = {name for name, each in rows.items() if each["change"] == "moved"}
    assert sampled_out and moved
    assert {(rows[name]["from_split"], rows[name]["to_split"]) for name in moved} == {("test", "train")}
    assert all(int(name[1:]) >= 40 for name, each in rows.items() if each["change"] == "added" and each["to_split"] != "train")
    groups = found.changes.to_pylist()
    assert {group["source"] for group in groups} == {"gateway", "litellm"}
    assert found.total == len(rows) == sum(diff_summary(found).values())
    back = compare_versions(registry.lake, "sft_dataset", "current", "previous")
    assert diff_summary(back)["added"] == diff_summary(found)["removed"] and (back.old, back.new) == (new.version, old.version)
    same = compare_versions(registry.lake, "sft_dataset", old.version[:6], old.version)
    assert same.total == 0


@pytest.mark.parametrize(
    ("name", "old", "said"),
    [
        (
            "sft_dataset",
            "ffff",
            "ffff is no version of tutor/sft_dataset; give current, previous, or at least 4 digits of one of",
        ),
        ("sft_datasets", None, "there is no dataset sft_datasets; give one of tutor/curated, tutor/sft_dataset"),
        ("curated", "current", "has no rows in splits"),
    ],
)
def test_what_cannot_be_compared_is_said(registry, tmp_path, name, old, said):
    version(registry, tmp_path, ROWS, FIRST)
    draft = registry.draft("dataset", "curated", "curate", SOURCES, {}, [])
    curated(draft.directory / "curated.parquet", ROWS[:1])
    registry.finish(draft, {})
    with pytest.raises(DiffError, match=said):
        compare_versions(registry.lake, name, old)


def test_a_held_out_row_behind_a_model_is_found(registry, tmp_path):
    """Two datasets of a model with different seeds: what one holds out, the other teaches."""
    first = version(registry, tmp_path, ROWS, FIRST)
    assert held_out_in_training(registry.lake, first) == []
    fewer = FIRST.model_copy(update={"max_rows": 20})
    same = version(registry, tmp_path, ROWS, fewer, name="second", inputs=[first.as_input()])
    assert held_out_in_training(registry.lake, same) == []
    other = version(registry, tmp_path, ROWS, FIRST.model_copy(update={"seed": 5}), name="stage2")
    draft = registry.draft("model", "sft_model", "sft", SOURCES, {}, [first.as_input(), other.as_input()])
    (draft.directory / "weights").write_text("none")
    leaks = held_out_in_training(registry.lake, registry.finish(draft, {}))
    pairs = {(leak.learnt.partition("@")[0], leak.held.partition("@")[0]) for leak in leaks}
    assert pairs == {("tutor/sft_dataset", "tutor/stage2"), ("tutor/stage2", "tutor/sft_dataset")}
    assert all(leak.rows > 0 and "are held out in" in str(leak) for leak in leaks)
