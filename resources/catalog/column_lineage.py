"""Which columns the columns of a table or dataset are made from, as a YAML file beside the SQL says.

    columns_of("sft_dataset")       # {"messages": [("curated_interactions", "messages"), ...], ...}

A column is made from another if a value of the second changes a value of the first, in a row that is there either way; which
rows are there is not part of it. tests/resources/catalog/test_column_lineage.py holds the files to that by experiment.
"""

from __future__ import annotations

from functools import cache

import yaml

from resources.lake import SQL

FILES = {
    "cleaned_interactions": "curating/clean.yaml",
    "curated_interactions": "curating/curate.yaml",
    "sft_dataset": "composing/datasets.yaml",
}
"""Tables and datasets made by SQL -> the file in sql/."""


@cache
def columns_of(name: str) -> dict[str, list[tuple[str, str]]]:
    """Column -> (table or dataset, column) of everything that it is made from; empty for what no SQL makes."""
    if name not in FILES:
        return {}
    said = yaml.safe_load((SQL / FILES[name]).read_text(encoding="utf-8"))
    return {column: [tuple(source.split(".")) for source in sources] for column, sources in said.items()}
