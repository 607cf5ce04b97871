"""What analysts open: views over everything, lineage down to log lines, reading while a run writes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from interaction_rows import START, days_of, interaction, store

from model_ops.answers.answer_rows import ROLLOUT_ROWS, SAMPLED_ANSWER_ROWS
from model_ops.files.atomic_files import write_json
from resources.catalog.build import rebuild
from resources.catalog.catalog import CatalogError, ask, lineage_of, query
from resources.catalog.comments import RELATIONS
from resources.catalog.enough_rows import count_records
from resources.composing.datasets import DatasetSettings, build_sft_dataset
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.selection import curate
from resources.digests.slices import slice_digest
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.manifests.manifest import Code, Input, Manifest, describe_files, files_digest
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings


def finish(lake, kind, name, version, inputs, current=True):
    """A finished artefact: what the registry writes, in short."""
    home = lake.artefacts(kind) / "tutor" / name
    files = describe_files(home / version)
    manifest = Manifest(
        kind=kind,
        name=f"tutor/{name}",
        version=version,
        created_at=datetime(2026, 6, 2, tzinfo=UTC),
        digest=files_digest(files),
        inputs=inputs,
        op=name,
        config={},
        code=Code(revision="r", dirty=False),
        environment={},
        files=files,
    )
    (home / version / "manifest.json").write_text(manifest.model_dump_json())
    if current:
        write_json(home / "current.json", {"version": version})
    return manifest.as_input()


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Two conversations and a dropped row, through every step, to a model."""
    lake = LakeLayout.open(tmp_path_factory.mktemp("catalog") / "lake")
    tables = Tables(lake)
    first = [{"role": "user", "content": "what is a mill for"}]
    later = [*first, {"role": "assistant", "content": "for grain"}, {"role": "user", "content": "and a wheel"}]
    rows = [
        interaction(1, first, "for grain", session_id="a", user_hash="ann", source_row=11),
        interaction(2, later, "for the mill", session_id="a", minutes=1, user_hash="ann", source_row=12),
        interaction(3, "an error please", "no", session_id="b", error="boom", source_row=13),
        interaction(4, "tell me of bread", "it is baked", session_id="c", day=1, user_hash="bob", source_row=14),
    ]
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), CurationSettings())
    datasets = lake.artefacts("dataset") / "tutor"
    curate(tables, "tutor", datasets / "curated_interactions" / "c1", CurationSettings(), None)
    slice_input = Input(kind="table", name="cleaned_interactions", digest=slice_digest(tables, "cleaned_interactions", "tutor"))
    curated = finish(lake, "dataset", "curated_interactions", "c1", [slice_input])
    spec = DatasetSettings(test_share=0, validation_share=0)
    inputs = {}
    for version in ("d0", "d1"):
        build_sft_dataset(
            datasets / "curated_interactions" / "c1" / "curated.parquet", None, datasets / "sft_dataset" / version, spec, tables
        )
        inputs[version] = finish(lake, "dataset", "sft_dataset", version, [curated])
    model = lake.artefacts("model") / "tutor" / "sft_model" / "abcdef123456"
    model.mkdir(parents=True)
    (model / "weights").write_text("w")
    made = finish(
        lake, "model", "sft_model", "abcdef123456", [inputs["d1"], Input(kind="external", name="Qwen/Qwen3", digest="e" * 64)]
    )
    release = lake.artefacts("release") / "tutor" / "r1"
    release.mkdir(parents=True)
    (release / "serve.json").write_text("{}")
    files = describe_files(release)
    (release / "manifest.json").write_text(
        Manifest(
            kind="release",
            name="tutor/release",
            version="r1",
            digest=files_digest(files),
            inputs=[made],
            op="release",
            config={},
            code=Code(revision="r", dirty=False),
            environment={},
            files=files,
        ).model_dump_json()
    )
    (datasets / "sft_dataset" / "unfinished").mkdir()
    rebuild(lake)
    return lake


def test_every_table_is_there_with_its_columns_even_when_empty(lake):
    for name, schema in SCHEMAS.items():
        more = ["user_hash"] if name == "feedback" else []
        assert query(lake, f"select * from {name}").column_names == [*schema.names, *more]
    assert query(lake, "select count(*) as rows from interactions where dt = date '2026-06-01'").to_pylist() == [{"rows": 3}]
    types = dict(
        zip(*query(lake, "select column_name, column_type from (describe interactions)").to_pydict().values(), strict=True)
    )
    assert types["dt"] == "DATE" and types["workload"] == "VARCHAR"


def test_datasets_are_views_of_their_current_version(lake):
    rows = query(lake, "select row_id, split, version from tutor_sft_dataset order by row_id").to_pylist()
    assert rows == [{"row_id": "i2", "split": "train", "version": "d1"}, {"row_id": "i4", "split": "train", "version": "d1"}]
    assert query(lake, "select count(*) as rows from tutor_curated_interactions").to_pylist() == [{"rows": 3}]


def test_a_dataset_is_found_by_name_and_read_in_any_version(lake):
    found = query(
        lake,
        "select version, is_current, relation, versions_relation, row_count, typeof(bytes) as bytes from datasets "
        "where name = 'tutor/sft_dataset' order by version",
    ).to_pylist()
    same = {
        "relation": "tutor_sft_dataset",
        "versions_relation": "tutor_sft_dataset_versions",
        "row_count": 2,
        "bytes": "BIGINT",
    }
    assert found == [{"version": "d0", "is_current": False, **same}, {"version": "d1", "is_current": True, **same}]
    rows = query(lake, "select version, count(*) as rows from tutor_sft_dataset_versions group by version order by version")
    assert rows.to_pylist() == [{"version": "d0", "rows": 2}, {"version": "d1", "rows": 2}]
    plan = query(lake, "explain analyze select * from tutor_sft_dataset_versions where version = 'd0'").to_pylist()[0]
    assert "/d1/" not in plan["explain_value"] and "/d0/" in plan["explain_value"]


def test_a_dataset_with_a_broken_file_is_listed_and_stops_no_other_view(lake, tmp_path):
    broken = LakeLayout.open(shutil.copytree(lake.root, tmp_path / "lake"))
    (broken.root / "datasets" / "tutor" / "sft_dataset" / "d1" / "train.parquet").write_bytes(b"PAR1 cut")
    rebuild(broken)
    found = query(broken, "select version, relation, row_count from datasets where name = 'tutor/sft_dataset' order by version")
    assert found.to_pylist() == [
        {"version": "d0", "relation": None, "row_count": 2},
        {"version": "d1", "relation": None, "row_count": None},
    ]
    assert query(broken, "from tutor_sft_dataset_versions").num_rows == 2
    assert query(broken, "from interactions").num_rows == 4


def test_versions_whose_types_differ_are_not_read_as_one(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    home = lake.artefacts("dataset") / "tutor" / "eval_suite"
    for version, values in (("v1", ["1"]), ("v2", [2])):
        (home / version).mkdir(parents=True)
        pq.write_table(pa.table({"item": values}), home / version / "items.parquet")
        (home / version / "manifest.json").write_text(
            json.dumps({"kind": "dataset", "name": "tutor/eval_suite", "version": version})
        )
    write_json(home / "current.json", {"version": "v2"})
    rebuild(lake)
    assert query(lake, "select item, version from tutor_eval_suite_versions").to_pylist() == [{"item": 2, "version": "v2"}]
    [said] = query(lake, "select comment from relations where relation = 'tutor_eval_suite_versions'").to_pylist()
    assert said["comment"].endswith("all versions whose columns have the types of the current one")


GRADED = {"row_id": "p1", "interaction_ids": ["i1"], "step": 10, "answer": 3, "grade": 0.5, "parts": [("brief", 0.5)]}
GRADED |= {"problem": "", "tokens": 7, "ended": True}


@pytest.mark.parametrize(("relation", "file", "schema", "more"), [
    ("sampled_answers", "sampled.parquet", SAMPLED_ANSWER_ROWS, {"side": "chosen"}),
    ("rollouts", "rollouts.parquet", ROLLOUT_ROWS, {"last": True, "version": 9, "learnt": True, "gap": 0.25, "text": "2"}),
])  # fmt: skip
def test_answers_that_a_model_gave_while_it_trained_are_rows(lake, tmp_path, relation, file, schema, more):
    measured, row = LakeLayout.open(shutil.copytree(lake.root, tmp_path / "lake")), {**GRADED, **more}
    assert query(measured, f"from {relation}").to_pylist() == []
    home = measured.root / "models" / "tutor" / "sft_model" / "abcdef123456"
    pq.write_table(pa.Table.from_pylist([row], schema=schema), home / file)
    columns = f"select column_name, column_type from (describe {relation})"
    before = query(measured, columns).to_pylist()
    rebuild(measured)
    assert query(measured, f"select * replace (parts['brief'] as parts) from {relation}").to_pylist() == [
        {"node": "model:tutor/sft_model@abcdef123456", **row, "parts": 0.5}
    ]
    assert query(measured, columns).to_pylist() == before


def test_metrics_are_one_long_table(lake, tmp_path):
    measured = LakeLayout.open(shutil.copytree(lake.root, tmp_path / "lake"))
    home = measured.root / "models" / "tutor" / "sft_model" / "abcdef123456"
    manifest = json.loads((home / "manifest.json").read_text())
    manifest["metrics"] = {
        "records": {"dropped": {"too.short": 3}},
        "by_layer": [0.5, 1.5],
        "done": True,
        "note": "3",
        "none": None,
    }
    (home / "manifest.json").write_text(json.dumps(manifest))
    (home / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 1.25}\n{"step": 3, "lo')
    rebuild(measured)
    found = query(
        measured, "select step, metric, value from metrics where name = 'tutor/sft_model' order by all nulls first"
    ).to_pylist()
    assert [tuple(row.values()) for row in found] == [
        (None, "by_layer/0", 0.5),
        (None, "by_layer/1", 1.5),
        (None, "done", 1.0),
        (None, "records/dropped/too.short", 3.0),
        (1, "loss", 2.5),
        (2, "loss", 1.25),
    ]


def test_what_an_evaluation_compared_with_is_not_in_a_releases_weights(lake, tmp_path):
    """A second release learns no rows of its own; its report read the first model, as an evaluation reads the champion."""
    compared = LakeLayout.open(shutil.copytree(lake.root, tmp_path / "lake"))
    first = Input(kind="model", name="tutor/sft_model", version="abcdef123456", digest="d")
    made = []
    for kind, name, inputs in (("model", "other_model", []), ("dataset", "evaluation_report", [first])):
        home = compared.artefacts(kind) / "tutor" / name / "v"
        home.mkdir(parents=True)
        (home / "file").write_text(name)
        made.append(finish(compared, kind, name, "v", inputs))
    home = compared.artefacts("release") / "tutor" / "r2"
    shutil.copytree(compared.artefacts("release") / "tutor" / "r1", home)
    manifest = json.loads((home / "manifest.json").read_text()) | {
        "version": "r2",
        "inputs": [item.model_dump() for item in made],
    }
    (home / "manifest.json").write_text(json.dumps(manifest))
    write_json(home.parent / "current.json", {"version": "r2"})
    rebuild(compared)
    assert query(compared, "from ancestors('tutor/release@r2') where name = 'tutor/sft_model'").num_rows == 1
    assert query(compared, "from log_lines_in('tutor/release')").num_rows == 0
    assert query(compared, "from log_lines_in('tutor/release@r1')").num_rows == 3
    assert query(compared, "from weights_holding('ann') where artefact like 'release:%'")["artefact"].to_pylist() == [
        "release:tutor/release@r1"
    ]
    assert query(compared, "from why('r1') where stage = 'release'")["version"].to_pylist() == ["r1"]


def test_models_are_a_view(lake):
    assert query(lake, "select name, version, is_current from models").to_pylist() == [
        {"name": "tutor/sft_model", "version": "abcdef123456", "is_current": True}
    ]


def test_ancestors_and_descendants_of_any_node(lake):
    below = query(lake, "select depth, name from ancestors('tutor/release@r1')").to_pylist()
    assert [(row["depth"], row["name"]) for row in below] == [
        (1, "tutor/sft_model"),
        (2, "tutor/sft_dataset"),
        (2, "Qwen/Qwen3"),
        (3, "tutor/curated_interactions"),
        (4, "tutor/cleaned_interactions"),
    ]
    above = query(lake, "select depth, name, version from descendants('tutor/cleaned_interactions')").to_pylist()
    assert [tuple(row.values()) for row in above] == [
        (1, "tutor/curated_interactions", "c1"),
        (2, "tutor/sft_dataset", "d0"),
        (2, "tutor/sft_dataset", "d1"),
        (3, "tutor/sft_model", "abcdef123456"),
        (4, "tutor/release", "r1"),
    ]
    assert query(lake, "from descendants('Qwen/Qwen3')").num_rows == 2
    assert query(lake, "from descendants('tutor/sft_dataset')").num_rows == 2  # only the current version has children here
    assert query(lake, "from ancestors('abcdef')").num_rows == 4
    assert query(lake, "select workload from nodes where kind = 'external'").to_pylist() == [{"workload": None}]
    assert query(lake, "from edges").num_rows == query(lake, "from lineage_edges").num_rows == 6


def test_users_in_weights(lake):
    assert query(lake, "select user_hash, interactions from users_in('tutor/sft_model')").to_pylist() == [
        {"user_hash": "ann", "interactions": 2},
        {"user_hash": "bob", "interactions": 1},
    ]


def test_artefacts_and_edges_come_from_manifests(lake):
    found = query(lake, "select name, version, is_current from artefacts order by all").to_pylist()
    assert [(row["name"], row["version"], row["is_current"]) for row in found] == [
        ("tutor/curated_interactions", "c1", True),
        ("tutor/release", "r1", False),
        ("tutor/sft_dataset", "d0", False),
        ("tutor/sft_dataset", "d1", True),
        ("tutor/sft_model", "abcdef123456", True),
    ]
    kinds = query(lake, "select kind, count(*) as n from lineage_nodes group by kind order by kind").to_pylist()
    assert kinds == [
        {"kind": "dataset", "n": 3},
        {"kind": "external", "n": 1},
        {"kind": "model", "n": 1},
        {"kind": "release", "n": 1},
        {"kind": "table", "n": 1},
    ]


def test_which_log_lines_are_in_these_weights(lake):
    lines = query(
        lake, "select row_id, interaction_id, source_uri, source_row from log_lines_in('tutor/sft_model') order by all"
    ).to_pylist()
    assert [(row["row_id"], row["interaction_id"], row["source_row"]) for row in lines] == [
        ("i2", "i1", 11),
        ("i2", "i2", 12),
        ("i4", "i4", 14),
    ]
    assert query(lake, "from log_lines_in('tutor/sft_model@abc')").num_rows == 3
    assert query(lake, "from log_lines_in('abcdef')").num_rows == 3


def test_rows_of_a_dataset_are_its_own_and_not_those_of_the_dataset_that_gave_its_splits(lake, tmp_path):
    named = LakeLayout.open(shutil.copytree(lake.root, tmp_path / "lake"))
    home = named.artefacts("dataset") / "tutor"
    shutil.copytree(home / "sft_dataset" / "d1", home / "best" / "v")
    (home / "best" / "v" / "manifest.json").unlink()
    best = finish(named, "dataset", "best", "v", [Input(kind="dataset", name="tutor/sft_dataset", version="d1", digest="d")])
    for made in ("sft_dataset/d1", "best/v"):
        manifest = json.loads((home / made / "manifest.json").read_text()) | {"op": "build_sft_dataset"}
        (home / made / "manifest.json").write_text(json.dumps(manifest))
    weights = named.artefacts("model") / "tutor" / "second_sft_model" / "fedcba654321"
    weights.mkdir(parents=True)
    (weights / "weights").write_text("w")
    finish(named, "model", "second_sft_model", "fedcba654321", [best])
    rebuild(named)

    def of(artefact):
        return query(named, f"select dataset, count(*) as lines from log_lines_in('{artefact}') group by all").to_pylist()

    assert of("tutor/best") == of("tutor/second_sft_model") == [{"dataset": "dataset:tutor/best@v", "lines": 3}]
    assert of("tutor/sft_dataset") == of("tutor/sft_model") == [{"dataset": "dataset:tutor/sft_dataset@d1", "lines": 3}]
    assert query(named, "select dataset from weights_holding('ann') where artefact like '%second_sft%'").to_pylist() == [
        {"dataset": "dataset:tutor/best@v"}
    ]
    assert query(named, "from ancestors('tutor/best')").num_rows == 3  # the splits' dataset is an ancestor all the same


def test_which_weights_hold_a_user(lake):
    rows = query(lake, "select artefact, interactions from weights_holding('ann')").to_pylist()
    assert rows == [
        {"artefact": "model:tutor/sft_model@abcdef123456", "interactions": 2},
        {"artefact": "release:tutor/release@r1", "interactions": 2},
    ]
    assert query(lake, "from weights_holding($who)", {"who": "i3"}).num_rows == 0  # an interaction that nothing was trained on


@pytest.mark.parametrize("macro", ["log_lines_in", "users_in", "ancestors", "descendants", "named_nodes"])
def test_a_name_that_means_nothing_is_an_error_with_the_remedy(lake, macro):
    for name in ("nobody/x", "tutor/sft_model@zzz", "tutor/nosuch"):
        with pytest.raises(CatalogError, match=f"nothing in the lake is named {name}: give workload/name of a current version"):
            query(lake, f"from {macro}('{name}')")
    with pytest.raises(CatalogError, match="named sft_model: write tutor/sft_model, or give workload/name"):
        query(lake, f"select count(*) from {macro}($name)", {"name": "sft_model"})


def test_a_user_that_nobody_is_is_an_error(lake):
    with pytest.raises(CatalogError, match="no user and no interaction of the lake is nobody: give the whole user_hash"):
        query(lake, "from weights_holding($who)", {"who": "nobody"})


@pytest.mark.parametrize("asked", ["tutor/sft_model", "tutor/sft_model@abcdef", "abcdef", "directory"])
def test_lineage_goes_down_to_the_tables(lake, asked):
    if asked == "directory":
        asked = str(lake.artefacts("model") / "tutor" / "sft_model" / "abcdef123456")
    edges = lineage_of(lake, asked).to_pylist()
    assert [(row["depth"], row["kind"], row["name"]) for row in edges] == [
        (1, "dataset", "tutor/sft_dataset"),
        (1, "external", "Qwen/Qwen3"),
        (2, "dataset", "tutor/curated_interactions"),
        (3, "table", "tutor/cleaned_interactions"),
    ]
    assert edges[0]["child"] == "model:tutor/sft_model@abcdef123456" and edges[0]["parent"] == "dataset:tutor/sft_dataset@d1"


def test_an_artefact_that_is_not_there(lake):
    with pytest.raises(CatalogError, match="no artefact tutor/nothing in"):
        lineage_of(lake, "tutor/nothing")
    with pytest.raises(CatalogError, match=r"may be any of .*d0.*d1"):
        lineage_of(lake, "tutor/sft_dataset@d")


def test_why_tells_a_rows_whole_way(lake):
    steps = query(lake, "select stage, rule, kept, kept_id from why('r1') where current").to_pylist()
    assert [tuple(row.values()) for row in steps] == [
        ("interactions", "read", True, None),
        ("clean", "kept", True, None),
        ("curate", "kept", True, None),
        ("dataset", "subsumed_by_later_turn", True, "i2"),
        ("dataset row", "train", True, None),
        ("model", "holds it", True, None),
    ]
    assert query(lake, "from why('r1') where not current and stage = 'release'").num_rows == 1
    assert [row["rule"] for row in query(lake, "from why('i3')").to_pylist()] == ["read", "error"]
    assert query(lake, "from why('zzz')").num_rows == 0


def test_a_copied_lake_reads_its_own_files(lake, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(lake.root, copy)
    kept = tmp_path / "away"
    lake.root.rename(kept)
    try:
        assert query(LakeLayout.open(copy), "select count(*) as n from interactions").to_pylist() == [{"n": 4}]
        with duckdb.connect(str(copy / "catalog.duckdb"), read_only=True) as plain:
            plain.execute(f"set variable lake = '{copy}'")
            assert plain.execute("select count(*) from tutor_sft_dataset").fetchall() == [(2,)]
    finally:
        kept.rename(lake.root)


@pytest.mark.parametrize(("sql", "said"), [
    ("selec 1", 'syntax error at or near "selec"'),
    ("select * from interactionz", 'Did you mean "interactions'),
    ("create table t as select 1", "this is a CREATE statement: nothing was run"),
    ("select missing from decisions", '"missing" not found'),
])  # fmt: skip
def test_bad_sql_is_answered_in_one_line(lake, sql, said):
    with pytest.raises(CatalogError) as caught:
        query(lake, sql)
    assert said in str(caught.value) and "\n" not in str(caught.value) and "LINE 1" not in str(caught.value)


def test_no_lake_and_no_catalog(tmp_path):
    with pytest.raises(CatalogError, match="there is no lake"):
        query(LakeLayout(tmp_path / "none"), "select 1")
    with pytest.raises(CatalogError, match="has no catalog yet"):
        query(LakeLayout.open(tmp_path / "new"), "select 1")


def test_an_empty_lake_and_odd_names(tmp_path):
    lake = LakeLayout.open(tmp_path / "it's a lake")
    rebuild(lake)
    assert query(lake, "from dataset_rows").num_rows == query(lake, "from artefacts").num_rows == 0
    for workload in ("a-b", "a_b", "1st"):
        home = lake.artefacts("dataset") / workload / "eval_suite"
        (home / "v").mkdir(parents=True)
        pq.write_table(pa.table({"of": [workload]}), home / "v" / "items.parquet")
        (home / "v" / "manifest.json").write_text(
            json.dumps({"kind": "dataset", "name": f"{workload}/eval_suite", "version": "v"})
        )
        write_json(home / "current.json", {"version": "v"})
    (lake.artefacts("dataset") / "a-b" / "eval_suite" / "broken").mkdir()
    (lake.artefacts("dataset") / "a-b" / "eval_suite" / "broken" / "manifest.json").write_text("{")
    rebuild(lake)
    assert query(
        lake,
        'select "of" from a_b_eval_suite union all select "of" from a_b_eval_suite_2 union all '
        'select "of" from _1st_eval_suite',
    ).to_pydict() == {"of": ["a-b", "a_b", "1st"]}
    assert not list(lake.root.glob(".catalog-*"))


def test_a_lake_of_before_a_column_was_added_reads_null_there(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    store(Tables(lake), "interactions", [interaction(n, "hello", "you", day=n % 2) for n in range(4)])
    clean(Tables(lake), "tutor", days_of([interaction(n, "", "", day=n) for n in range(2)]), CurationSettings())
    files = Tables(lake).files("cleaned_interactions")
    for number, file in enumerate(sorted(files)):  # `quality` in no file, `language` in one of two
        kept = pq.ParquetFile(file).read().drop_columns(["quality", *["language"][number:]])
        pq.write_table(kept, file)
    rebuild(lake)
    assert len(files) == 2
    [row] = query(
        lake,
        "select count(*) as n, count(quality) as rated, any_value(typeof(quality)) as kind, "
        "count(cleaned_with) as cleaned, count(*) filter (dt is not null) as dated from cleaned_interactions",
    ).to_pylist()
    assert row == {"n": 4, "rated": 0, "kind": "MAP(VARCHAR, DOUBLE)", "cleaned": 4, "dated": 4}
    assert list(query(lake, "from cleaned_interactions").column_names) == SCHEMAS["cleaned_interactions"].names


def test_reading_goes_on_while_a_run_writes(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    store(Tables(lake), "interactions", [interaction(n, "hello", "you", day=n % 3) for n in range(30)])
    rebuild(lake)
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent("""
            import sys
            sys.path[:0] = sys.argv[2:]
            from interaction_rows import interaction, store
            from resources.catalog.build import rebuild
            from resources.lake.lake import LakeLayout
            from resources.lake.tables import Tables
            lake = LakeLayout.open(sys.argv[1])
            while True:
                for day in range(3):
                    store(Tables(lake), "interactions", [interaction(n, "hello", "you", day=day) for n in range(10)])
                rebuild(lake)
                print("round", flush=True)
        """),
            str(lake.root),
            str(Path(__file__).parents[3]),
            str(Path(__file__).parents[1]),
        ],
        stdout=subprocess.PIPE,
    )
    try:
        writer.stdout.readline()
        until, reads = time.monotonic() + 3, 0
        while time.monotonic() < until or reads < 10:
            assert query(lake, "select count(*) as n from interactions").to_pylist() == [{"n": 30}]
            reads += 1
        writer.stdout.readline()
        assert writer.poll() is None
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()


def decided(lake, relation="decisions"):
    found = query(lake, f"select workload, stage, version, count(*) as n from {relation} group by all order by all").to_pylist()
    return [f"{row['workload']} {row['stage']} {row['version']} {row['n']}" for row in found]


def decide(lake, workload, stage, version, count):
    """Decisions of a stage, as its step writes them."""
    rows = [
        {
            "workload": workload,
            "stage": stage,
            "version": version,
            "dt": START.date(),
            "interaction_id": f"{workload}{n}",
            "rule": "kept",
            "kept": True,
        }
        for n in range(count)
    ]
    Tables(lake).append("decisions", pa.Table.from_pylist(rows, schema=SCHEMAS["decisions"]))


def make_current(lake, name, version):
    home = lake.artefacts("dataset") / name
    (home / version).mkdir(parents=True, exist_ok=True)
    (home / version / "manifest.json").write_text(json.dumps({"kind": "dataset", "name": name, "version": version}))
    write_json(home / "current.json", {"version": version})


def test_decisions_are_those_in_force_and_the_history_has_all(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    for workload in ("tutor", "shop"):  # versions of the same names in both
        decide(lake, workload, "ingest", None, 1)
        decide(lake, workload, "clean", "", 5)
        decide(lake, workload, "curate", "v1", 4)
        decide(lake, workload, "dataset", "d1", 3)
        make_current(lake, f"{workload}/curated_interactions", "v1")
        make_current(lake, f"{workload}/sft_dataset", "d1")
    rebuild(lake)
    shop = ["shop clean  5", "shop curate v1 4", "shop dataset d1 3", "shop ingest None 1"]
    first = ["tutor clean  5", "tutor curate v1 4", "tutor dataset d1 3", "tutor ingest None 1"]
    assert decided(lake) == shop + first

    decide(lake, "tutor", "curate", "v2", 2)  # other settings, a second run
    decide(lake, "tutor", "dataset", "d2", 2)
    make_current(lake, "tutor/curated_interactions", "v2")
    make_current(lake, "tutor/sft_dataset", "d2")
    decide(lake, "tutor", "curate", "v3", 9)  # a run that was killed
    rebuild(lake)
    assert decided(lake) == [*shop, "tutor clean  5", "tutor curate v2 2", "tutor dataset d2 2", "tutor ingest None 1"]
    assert len(decided(lake, "decisions_history")) == len(shop) + 7
    steps = query(lake, "select version, current from why('tutor1') where stage = 'curate' order by version").to_pylist()
    assert [(step["version"], step["current"]) for step in steps] == [("v1", False), ("v2", True), ("v3", False)]

    make_current(lake, "tutor/curated_interactions", "v1")  # back to the first settings
    make_current(lake, "tutor/sft_dataset", "d1")
    rebuild(lake)
    assert decided(lake) == shop + first
    shutil.rmtree(lake.artefacts("dataset") / "tutor" / "sft_dataset")  # a dataset that is gone
    rebuild(lake)
    assert decided(lake) == shop + [row for row in first if "dataset" not in row]
    with duckdb.connect(str(lake.catalog), read_only=True) as plain:
        assert plain.execute("select count(*) from decisions where workload = 'tutor'").fetchone() == (10,)
        assert plain.execute("select count(*) from decisions_history where workload = 'tutor'").fetchone() == (26,)


def test_records_are_counted_of_a_version_that_is_not_current_yet(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    rows = [interaction(n, f"what is {n}", "a number") for n in range(3)]
    store(Tables(lake), "interactions", rows)
    clean(Tables(lake), "tutor", days_of(rows), CurationSettings())
    curate(Tables(lake), "tutor", lake.artefacts("dataset") / "tutor" / "curated_interactions" / "v1", CurationSettings(), None)
    rebuild(lake)
    assert query(lake, "from decisions where stage = 'curate'").num_rows == 0
    counts = count_records(lake, "tutor", "v1")
    assert (counts.read, counts.rows, counts.dropped) == (3, 3, {})
    assert counts.read_text == "3 records read"


def test_records_of_other_workloads_in_the_same_logs_are_counted_apart(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    logs = tmp_path / "log.jsonl"
    records = [
        {"workload_id": name, "messages": [{"role": "user", "content": f"q {n}"}, {"role": "assistant", "content": "a number"}]}
        for n, name in enumerate(["tutor", "tutor", "billing", "billing", "billing"])
    ]
    logs.write_text("".join(json.dumps(record) + "\n" for record in records))
    source = SourceSettings(uri=str(logs), workloads={"billing": "billing"})
    report = ingest(Tables(lake), "tutor", {"app": source})
    clean(Tables(lake), "tutor", list(report.days), CurationSettings())
    curate(Tables(lake), "tutor", lake.artefacts("dataset") / "tutor" / "curated_interactions" / "v1", CurationSettings(), None)
    rebuild(lake)
    counts = count_records(lake, "tutor", "v1")
    assert (counts.read, counts.elsewhere, counts.adds_up) == (2, 3, True)
    assert counts.read_text == "2 records read (3 more are of other workloads)"


def test_every_relation_and_column_has_a_comment(lake):
    without = query(
        lake,
        "select relation, comment from relations where comment is null union all "
        "select relation || '.' || column_name, comment from relation_columns where comment is null",
    )
    assert without["relation"].to_pylist() == []
    names = set(query(lake, "select relation from relations")["relation"].to_pylist())
    assert {"decisions", "decisions_history", "tutor_sft_dataset", "why(identifier)", "relations"} <= names
    found = query(
        lake,
        "select view_name, comment from duckdb_views() where view_name = 'decisions' union all "
        "select column_name, comment from duckdb_columns() where table_name = 'tutor_sft_dataset' "
        "and column_name = 'interaction_ids'",
    ).to_pydict()
    assert all(found["comment"]) and len(found["comment"]) == 2


def test_every_description_is_of_something_that_is(lake):
    relations = set(query(lake, "select relation from relations")["relation"].to_pylist())
    assert {name.split("(")[0] for name in relations} >= set(RELATIONS)


def test_questions_of_any_size_come_in_batches(lake):
    with ask(lake, "select range as n from range(1_000_000_000_000)") as answer:
        assert answer.schema.names == ["n"]
        assert next(answer.batches).num_rows > 0
