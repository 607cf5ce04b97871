"""A user whom `fields` names leaves no byte, whatever format his records have."""

import json

import pytest
from filled_lake import CURATION, learnt_datasets, made

from benchmarks.lake_bytes import places_of
from resources.artefacts.registry import Registry
from resources.catalog.build import rebuild
from resources.composing.datasets import DatasetSettings
from resources.composing.preferences import PreferenceSettings, build_preferences
from resources.curating.cleaning import clean
from resources.digests.user_hash import keyed_hash
from resources.endpoints.endpoint_log import Actor
from resources.erasing.erasure import forget
from resources.erasing.journal import ask_for
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings
from tests.resources.records.marked_formats import MARK, NAMES, VALUES, fields_of, write_marked

BY = Actor("tester", "test", "request 1")
SPLITS = DatasetSettings(test_share=0, validation_share=0)


def learnt(home, sources):
    """A lake from logs to datasets for supervised and preference training."""
    lake = LakeLayout.open(home)
    tables, registry = Tables(lake), Registry(lake, "tutor")
    ingest(tables, "tutor", sources)
    clean(tables, "tutor", sorted(tables.rows_by_day("interactions", "tutor")), CURATION)
    curated, _ = learnt_datasets(lake)

    def compose(output):
        build_preferences(tables, "tutor", output, PreferenceSettings(), SPLITS, CURATION, curated.version)

    made(registry, "dataset", "preference_dataset", [curated.as_input()], compose)
    rebuild(lake)
    return lake


def write_others(logs):
    """Rows of another user, which stay."""
    logs.mkdir(parents=True, exist_ok=True)
    texts = ("How is the mill stone dressed again", "Where does the grain dry in winter", "Who sieves the flour for the baker")
    lines = [
        {"prompt": f"{text}, and why?", "chosen": f"{text}: with care {n}.", "rejected": f"No idea {n}.", "who": "bob"}
        for n, text in enumerate(texts)
    ]
    (logs / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_pairs_whose_user_fields_name_leave_every_dataset(tmp_path):
    write_others(tmp_path / "bob")
    (tmp_path / "ann").mkdir()
    lines = [
        {
            "prompt": f"{MARK} asks what mill number {n} grinds at noon",
            "chosen": f"Mill {n} grinds {MARK} wheat at noon.",
            "rejected": f"I do not know {MARK}, mill {n}.",
            "who": f"Ann@{MARK}.example ",
            "conv": f"s-{n}-{MARK}",
        }
        for n in range(4)
    ]
    (tmp_path / "ann" / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    named = {name: SourceSettings(uri=str(tmp_path / name), fields={"user": "who"}) for name in ("ann", "bob")}
    named["ann"] = SourceSettings(uri=str(tmp_path / "ann"), fields={"user": "who", "session": "conv"})
    lake = learnt(tmp_path / "lake", named)
    shown = {place.split("/")[2] for place in places_of({MARK}, lake.root) if place.startswith("datasets")}
    assert shown == {"curated_interactions", "sft_dataset", "preference_dataset"}
    plan = forget(lake, ask_for(Tables(lake), "user", f"ann@{MARK}.EXAMPLE"), BY, vacuum=True)
    assert places_of({MARK}, lake.root) == [] and plan.interactions == 8
    rows = Tables(lake).open("interactions").to_pyarrow_table().to_pylist()
    assert len(rows) == 6 and {row["user_hash"] for row in rows} == {keyed_hash("bob")}


@pytest.mark.slow
def test_no_byte_of_a_user_is_left_in_any_format_with_every_column_that_fields_may_name(tmp_path):
    names, but = NAMES, ("status",)  # failed requests reach no dataset
    write_marked(tmp_path / "logs", names, MARK)
    write_others(tmp_path / "bob")
    sources = {"bob": SourceSettings(uri=str(tmp_path / "bob"), fields={"user": "who"})} | {
        name.partition(".")[0]: SourceSettings(
            uri=str(tmp_path / "logs" / name.partition(".")[0]), fields=fields_of(name, but), workloads={"w1": "tutor"}
        )
        for name in names
    }
    lake = learnt(tmp_path / "lake", sources)
    assert len(places_of({MARK}, lake.root)) > 20
    forget(lake, ask_for(Tables(lake), "user", VALUES["user"]), BY, vacuum=True)
    assert places_of({MARK}, lake.root) == []
    assert len(Tables(lake).open("interactions").to_pyarrow_table()) == 6


def test_feedback_goes_with_the_user_who_gave_it_and_stays_away(tmp_path):
    logs = tmp_path / "logs"
    write_others(logs)
    lines = [
        {"request_id": f"r{n}", "score": n, "comment": f"{who} likes it", "author": f"{who}@Mill.example"}
        for n, who in enumerate((MARK, "bob"))
    ]
    (logs / "thumbs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    lake = LakeLayout.open(tmp_path / "lake")
    tables, source = Tables(lake), {"app": SourceSettings(uri=str(logs), fields={"user": "author"})}
    ingest(tables, "tutor", source)
    plan = forget(lake, ask_for(tables, "user", f"{MARK}@mill.example"), BY, vacuum=True)
    assert plan.tables == {"feedback": 1} and [place.lines for place in plan.places] == [[1]]
    with (logs / "thumbs.jsonl").open("a") as file:
        file.write("\n")
    ingest(tables, "tutor", source)
    comments = [row["comment"] for row in tables.open("feedback").to_pyarrow_table().to_pylist() if row["comment"]]
    assert comments == ["bob likes it"] and places_of({MARK}, lake.root) == []
