"""A preference dataset in a lake: nothing held out is learnt, its views in SQL, and `millrace show --preference`."""

import json

import pyarrow.parquet as pq
import pytest
from curated_rows import built, curated, row
from feedback_rows import Made, keep
from interaction_rows import interaction, thumb

from resources.artefacts.registry import Registry
from resources.catalog.build import rebuild
from resources.catalog.catalog import query
from resources.composing.dataset_settings import DatasetSettings
from resources.composing.held_out import held_out_in_training
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.manifests.erased import is_learnt

SOURCES = ("model_ops/jobs/job.py",)
SPLIT = DatasetSettings(test_share=0.3, validation_share=0.2)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Pairs of two users' answers, so that most pairs have a held-out session, beside the sft_dataset of the same sessions."""
    folder = tmp_path_factory.mktemp("preference")
    lake = LakeLayout.open(folder / "lake")
    rows = [interaction(f"{side}{n}", f"question {n}", f"What I can say of {n}\nis {side}.", session_id=f"{side}{n}",
            user_hash=f"u{side}{n}") for n in range(30) for side in ("good", "bad")]  # fmt: skip
    thumbs = [thumb(1 if side == "good" else -1, interaction_id=f"i{side}{n}") for n in range(30) for side in ("good", "bad")]
    keep(Tables(lake), rows, thumbs)
    registry = Registry(lake, "tutor")
    like_logged = [row(each["interaction_id"], f"asked {each['interaction_id']}", "x",
            **{key: each[key] for key in ("session_id", "user_hash")}) | {
            "interaction_id": each["interaction_id"]} for each in rows]  # fmt: skip
    inputs = {}
    for name, seed in (("sft_dataset", 0), ("preference_dataset", 0), ("other_preferences", 5)):
        draft = registry.draft("dataset", name, name, SOURCES, {"seed": seed}, [])
        if name == "sft_dataset":
            built(curated(folder / "curated.parquet", like_logged), draft.directory, SPLIT)
        else:
            made = Made(folder / name, tables=Tables(lake), splits=SPLIT.model_copy(update={"seed": seed}))
            for file in made.folder.iterdir():
                file.rename(draft.directory / file.name)
        inputs[name] = registry.finish(draft, {"dropped": {"pairs": {"placeholder": 2, "only_cut": 1}}})
    rebuild(lake)
    return lake, inputs


def model_of(lake, inputs, *names):
    registry = Registry(lake, "tutor")
    draft = registry.draft("model", "preference_model", "preference", SOURCES, {}, [inputs[name].as_input() for name in names])
    (draft.directory / "weights").write_text(" ".join(names))
    return registry.finish(draft, {})


def test_no_row_that_a_dataset_holds_out_is_learnt_and_one_with_other_splits_is_found(lake):
    place, inputs = lake
    assert held_out_in_training(place, model_of(place, inputs, "sft_dataset", "preference_dataset")) == []
    leaks = held_out_in_training(place, model_of(place, inputs, "sft_dataset", "other_preferences"))
    learnt = {(leak.learnt.partition("@")[0], leak.held.partition("@")[0]) for leak in leaks}
    assert ("tutor/other_preferences", "tutor/sft_dataset") in learnt and (
        "tutor/sft_dataset",
        "tutor/other_preferences",
    ) in learnt
    directory = place.artefacts("dataset") / "tutor" / "other_preferences" / inputs["other_preferences"].version
    pairs, answers = (pq.read_table(directory / f"{name}train.parquet").num_rows for name in ("", "unpaired_"))
    found = sum(leak.rows for leak in leaks if leak.learnt.startswith("tutor/other") and leak.held.startswith("tutor/sft"))
    assert 0 < pairs < found <= pairs + answers, "single answers are searched too"


def test_files_of_training_rows_are_learnt():
    files = [f"{prefix}{split}.parquet" for prefix in ("", "unpaired_") for split in ("train", "validation", "test")]
    assert [name for name in files if is_learnt(name, files)] == ["train.parquet", "unpaired_train.parquet"]


def test_both_kinds_of_rows_are_views_with_splits_and_comments(lake):
    place, _ = lake
    for relation, rows in (("tutor_preference_dataset", 30), ("tutor_preference_dataset_unpaired", 60)):
        found = query(place, f"select split, count(*) as rows from {relation} group by split").to_pylist()
        assert {each["split"] for each in found} == {"train", "validation", "test"} and sum(
            each["rows"] for each in found
        ) == rows
        told = query(place, f"select column_name, comment from relation_columns where relation = '{relation}'").to_pydict()
        assert all(told["comment"]) and {"confidence", "weight", "reason"} <= set(told["column_name"])
    answers = query(place, "select count(*) as rows from tutor_preference_dataset_unpaired where split = 'train'")
    lines = query(
        place,
        "select count(*) as rows from log_lines_in('tutor/preference_dataset') where row_id like 'answer:%' and split = 'train'",
    )
    assert lines.to_pylist() == answers.to_pylist()


@pytest.fixture
def show(lake, cli, tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        json.dumps({"workload": "tutor", "base_model": "tiny", "sources": {"gateway": {"uri": "gateway"}}})
    )
    return lambda *more, check=0: cli(
        "show", tmp_path / "recipe.yaml", "--lake", lake[0].root, "--preference", *more, check=check
    )


def test_pairs_are_shown_with_their_first_difference_in_80_columns(show, lake):
    place, _ = lake
    [row_id] = query(place, "select min(row_id) as row from tutor_preference_dataset where split = 'train'")["row"].to_pylist()
    lines = show("--row", row_id).stdout.splitlines()
    assert lines[0] == f"{row_id}  rated  confidence 0.8  margin 1  weight 1"
    assert lines[1].startswith("prompt    user: question ")
    assert lines[2].startswith("chosen    What I can say of ") and lines[3] == f"{'':10}is »good."
    assert lines[4].startswith("rejected  What I can say of ") and lines[5] == f"{'':10}is »bad."
    shown = show("--count", "50").stdout
    assert max(map(len, shown.splitlines())) <= 80 and shown.count("»") >= 2 * 7 and "  thumb  confidence 0.8" in shown
    assert "with a verdict in train; » marks the first difference" in shown
    assert "pairs left out: placeholder 2, only_cut 1; README.md of the dataset says why" in shown
    assert "has no row pair:0" in show("--row", "pair:0", check=2).stderr
    assert "leave --preference out" in show("--html", "x.html", check=2).stderr


def test_a_lake_without_preferences_is_a_sentence(cli, tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        json.dumps({"workload": "helper", "base_model": "tiny", "sources": {"gateway": {"uri": "gateway"}}})
    )
    LakeLayout.open(tmp_path / "lake")
    done = cli("show", tmp_path / "recipe.yaml", "--lake", tmp_path / "lake", "--preference", check=2)
    assert "give the recipe `datasets: {preference: {}}`" in done.stderr
