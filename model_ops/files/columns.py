"""Columns of tables and of a dataset's files, with a sentence for each, which catalog, Dagster and the reference page read. No
file holds the sentences and no digest covers them."""

import pyarrow as pa

_KEY = b"description"


def column(name: str, kind: pa.DataType, *, description: str) -> pa.Field:
    """A column with the sentence that says what it holds."""
    return pa.field(name, kind, metadata={_KEY: description})


def sentence(schema: pa.Schema, name: str) -> str | None:
    """What a column holds; None for one without a sentence, or that the schema lacks."""
    return ((schema.field(name).metadata or {}).get(_KEY, b"") if name in schema.names else b"").decode() or None


def bare(schema: pa.Schema) -> pa.Schema:
    """The columns without sentences."""
    return pa.schema([field.remove_metadata() for field in schema])
