"""What `millrace forget` erases goes from seeds too: from files, and from other datasets of the lake."""

import json
import shutil

import pyarrow.parquet as pq
import pytest
from filled_lake import MARK, SESSIONS, records

from benchmarks.lake_bytes import places_of
from resources.artefacts.registry import Registry
from resources.composing.dataset_settings import SeedSettings
from resources.composing.datasets import DatasetSettings, build_sft_dataset
from resources.composing.seeds import SeedTombstones, drop_erased_seeds, import_seeds
from resources.endpoints.endpoint_log import Actor
from resources.erasing.erasure import forget, plan_erasure
from resources.erasing.journal import ask_for
from resources.lake.tables import Tables

BY = Actor("tester", "test")


def messages(record):
    return [*record["request"]["messages"], record["response"]["choices"][0]["message"]]


def seed_file(tmp_path):
    """Copies of logged conversations in other spelling and without ids; and records that only name somebody."""
    found = {record["response"]["id"]: messages(record) for record in records()}
    copies = [
        {"messages": [{**message, "content": f" {message['content'].upper()}\n"} for message in found[name]]}
        for name in ("request-ann-1-2", "request-ann-2-1", "request-bob-1-1")
    ]
    own = [{"role": "user", "content": "What is rye?"}, {"role": "assistant", "content": "A cereal that grows on poor soil."}]
    names = {"u": {"metadata": {"user_id": "ann"}}, "i": {"id": "request-ann-1-1"}, "b": {"metadata": {"user_id": "bob"}}}
    named = [{"messages": [{"role": "user", "content": f"{name}?"}, own[1]], **more} for name, more in names.items()]
    path = tmp_path / "handmade.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*copies, {"messages": own}, *named]))
    return SeedSettings(uri=str(path))


def imported(lake, output, seed, datasets=None):
    erased = SeedTombstones.of(Tables(lake), "tutor")
    report = import_seeds({"handmade": seed}, output, datasets, erased)
    dropped = drop_erased_seeds(output, Tables(lake), "tutor")
    return report, dropped, pq.read_table(output / "seeds.parquet").to_pylist()


@pytest.mark.parametrize(
    "kind, name, left",
    [
        ("user", "ann", 3),
        pytest.param("session", "ann-1", 5, marks=pytest.mark.thorough),
        pytest.param("interaction", "request-ann-1-1", 5, marks=pytest.mark.thorough),
    ],
)
def test_a_seed_file_is_read_without_what_was_erased(lake, tmp_path, kind, name, left):
    seed = seed_file(tmp_path)
    report, dropped, before = imported(lake, tmp_path / "before", seed)
    assert (report.rows, report.erased, dropped, len(before)) == (7, 0, {}, 7)
    forget(lake, ask_for(Tables(lake), kind, name), BY)
    report, dropped, after = imported(lake, tmp_path / "after", seed)
    assert len(after) == left and report.erased + sum(dropped.values()) == 7 - left
    assert any("RYE" in row["messages"].upper() for row in after) and any("BOB" in row["messages"] for row in after)
    if kind == "user":
        assert not places_of({MARK, MARK.upper()}, tmp_path / "after")


@pytest.mark.slow
def test_seeds_in_finished_datasets_go_with_the_interactions_that_they_repeat(lake, tmp_path):
    registry, seed = Registry(lake, "tutor"), seed_file(tmp_path)
    seeds = registry.draft("dataset", "seed_examples", "import_seeds", ("resources/lake/lake.py",), {}, [])
    imported(lake, seeds.directory, seed)
    made = registry.finish(seeds, {})
    rows = registry.draft("dataset", "best", "build_sft_dataset", ("resources/lake/lake.py",), {}, [made.as_input()])
    curated = registry.directory(registry.current("dataset", "curated_interactions")) / "curated.parquet"
    split = DatasetSettings(test_share=0, validation_share=0)
    build_sft_dataset(curated, seeds.directory / "seeds.parquet", rows.directory, split)
    registry.finish(rows, {})
    asked = ask_for(Tables(lake), "user", "ann")
    planned = {(hit.node.split("@")[0].split("/")[1], hit.path): hit.rows for hit in plan_erasure(lake, asked).files}
    assert planned["seed_examples", "seeds.parquet"] == 2
    forget(lake, asked, BY, vacuum=True)
    shown = places_of({MARK, MARK.upper()}, lake.root)
    assert all(place.startswith((".dagster/submitted", "answers/")) for place in shown)
    left = pq.read_table(seeds.directory / "seeds.parquet").to_pylist()
    assert len(left) == 5 and any("bob".upper() in row["messages"] for row in left)


@pytest.mark.slow
def test_training_rows_of_another_dataset_are_read_without_what_was_erased(lake, tmp_path):
    registry = Registry(lake, "tutor")
    dataset = registry.directory(registry.current("dataset", "sft_dataset"))
    copy = shutil.copytree(dataset, tmp_path / "copy")  # as it was before the erasure
    seed = SeedSettings(dataset="old/sft_dataset")
    before = imported(lake, tmp_path / "before", seed, {"handmade": copy})[2]
    forget(lake, ask_for(Tables(lake), "user", "ann"), BY)
    report, dropped, after = imported(lake, tmp_path / "after", seed, {"handmade": copy})
    assert len(before) - len(after) == len(SESSIONS["ann"]) == report.erased and not dropped
    assert not places_of({MARK}, tmp_path / "after")
