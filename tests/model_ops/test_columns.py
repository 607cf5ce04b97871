"""Sentences of columns, and that no file is written with them."""

import ast

import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.files.columns import bare, column, sentence
from resources.lake.sql_files import write_rows
from tests.command import PROJECT

ROWS = pa.schema([column("row_id", pa.string(), description="id of the row"), ("tokens", pa.int64())])


def test_a_column_says_what_it_holds_until_its_schema_is_bare():
    assert [sentence(ROWS, name) for name in ("row_id", "tokens", "other")] == ["id of the row", None, None]
    assert bare(ROWS).equals(pa.schema([("row_id", pa.string()), ("tokens", pa.int64())]), check_metadata=True)


def test_another_wording_gives_the_same_file(tmp_path):
    rows = pa.table({"row_id": ["a", None], "tokens": [1, 2]})
    for name, schema in (("told", ROWS), ("untold", bare(ROWS))):
        write_rows(rows.to_reader(), tmp_path / name, schema)
        write_rows(rows.cast(schema).to_reader(), tmp_path / f"{name}_rows")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert pq.read_schema(tmp_path / "told").equals(bare(ROWS), check_metadata=True)


def test_who_writes_rows_himself_leaves_the_sentences_out():
    told, wrong = set(), []
    files = [path for package in ("model_ops", "resources") for path in (PROJECT / package).rglob("*.py")]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    for tree in trees.values():
        for node in tree.body:
            if isinstance(node, ast.Assign) and any(getattr(call, "id", "") == "column" for call in _called(node)):
                told.add(node.targets[0].id)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            for given in node.keywords if isinstance(node, ast.Call) else ():
                if given.arg == "schema" and isinstance(given.value, ast.Name) and given.value.id in told:
                    wrong.append(f"{path.relative_to(PROJECT)}:{node.lineno}: write schema=bare({given.value.id})")
    assert len(told) > 8 and wrong == []


def _called(node):
    return [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
