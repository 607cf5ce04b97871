"""Sentences of the catalog's relations and columns, shown by `from relations`, `from relation_columns` and Dagster: from Arrow
schemas, from relations.yaml for what SQL makes anew, else of the column that a view or dataset passes on."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import yaml

from model_ops.answers import RESCORED_ROWS, ROLLOUT_ROWS, SAMPLED_ANSWER_ROWS
from model_ops.evaluation import row_tables
from model_ops.files import sentence
from model_ops.operations import ANSWER_ROWS, LIMIT_ROWS
from resources.composing import DATASET_SCHEMAS
from resources.lake import SCHEMAS, SQL, rows, sql_literal, sql_text

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast: every `millrace sql` reads the file
_SAID = yaml.load((Path(__file__).parent / "relations.yaml").read_text(encoding="utf-8"), _LOADER)
RELATIONS: dict[str, dict[str, Any]] = _SAID["relations"]
"""Tables, views and macros, by name."""
DATASETS: dict[str, dict[str, Any]] = _SAID["datasets"]
"""Views of a dataset's current version, by dataset (and by file, where it has several kinds)."""
_ALL = RELATIONS | DATASETS

_ANY_DATASET = ("sft_dataset", "preference_dataset", "rl_prompts", "interactions")
"""What any other dataset has rows of."""
_OF_VIEWS = {
    "split": "train, validation or test; else the name of the row's file",
    "version": RELATIONS["artefacts"]["columns"]["version"],
}
"""Columns that the views of datasets add to the files' own."""

DESCRIBED: dict[str, pa.Schema] = {**SCHEMAS, **DATASET_SCHEMAS, "length_report": LIMIT_ROWS, "speculator_dataset": ANSWER_ROWS,
    "evaluation_report_likelihood": row_tables.LIKELIHOOD_ROWS,
    "evaluation_report_task_scores": row_tables.TASK_ROWS,
    "evaluation_report_acceptance": row_tables.ACCEPTANCE_ROWS, "sampled_answers": SAMPLED_ANSWER_ROWS,
    "rollouts": ROLLOUT_ROWS, "rescored_answers": RESCORED_ROWS}  # fmt: skip
"""Tables, and files of datasets, whose columns have sentences in their schema."""


COLUMN_SOURCES = {"cleaned_interactions": "curating/clean.yaml", "curated_interactions": "curating/curate.yaml",
    "sft_dataset": "composing/datasets.yaml"}  # fmt: skip
"""Tables and datasets made by SQL -> the file in sql/ that says which columns a column is made from: a value of theirs changes
its value, in a row that is there either way. tests/resources/catalog/test_comments.py holds the files to that."""


@cache
def columns_of(name: str) -> dict[str, list[tuple[str, str]]]:
    """Column -> (table or dataset, column) of everything that it is made from; empty for what no SQL makes."""
    if name not in COLUMN_SOURCES:
        return {}
    said = yaml.safe_load((SQL / COLUMN_SOURCES[name]).read_text(encoding="utf-8"))
    return {column: [tuple(source.split(".")) for source in sources] for column, sources in said.items()}


def sentences_digest() -> str:
    """sha256 over the sentences of schemas, which count for no code (resources/digests/code.py)."""
    said = [(name, field.name, sentence(schema, field.name)) for name, schema in DESCRIBED.items() for field in schema]
    return hashlib.sha256(repr(said).encode()).hexdigest()


def comment_on(name: str, column: str) -> str | None:
    """What a column holds, of a table, a view or a dataset; None for a column that is not described."""
    said = _ALL.get(name, {})
    if column in said.get("columns", ()):
        return said["columns"][column]
    if name in DESCRIBED and (text := sentence(DESCRIBED[name], column)):
        return text
    if name not in RELATIONS and column in _OF_VIEWS:
        return _OF_VIEWS[column]
    reads = said.get("reads", () if name in RELATIONS else _ANY_DATASET)
    sources = [source for source, field in columns_of(name).get(column, ()) if field == column]
    return next(filter(None, (comment_on(source, column) for source in (*sources, *reads))), None)


def add_comments(connection: duckdb.DuckDBPyConnection, datasets: Mapping[str, str]) -> None:
    """Sets the comment of every relation and column that has none yet and is described here."""
    connection.execute("begin")
    for item in rows(connection, "catalog/artefacts/without_comment").to_pylist():
        relation, column = item["relation"], item["column_name"]
        if column is not None:
            text = comment_on(datasets.get(relation, relation), column)
        elif relation in datasets:
            text = f"{text_of(datasets[relation])}: the current version"
        else:
            text = RELATIONS.get(relation, {}).get("is")
        if text:
            name = relation if column is None else f'{relation}."{column}"'
            connection.execute(
                sql_text("catalog/artefacts/comment").format(kind=item["kind"], name=name, text=sql_literal(text))
            )
    connection.execute("commit")


def text_of(dataset: str) -> str:
    """What a dataset, or one kind of its files, holds."""
    return DATASETS[dataset]["is"] if dataset in DATASETS else f"The dataset {dataset}"
