"""Reads the records of a Parquet object in bounded memory: one JSON object per row, without null fields (`content` stays: a
message with tool calls has it null). A text column with JSON, where a format expects a structure, becomes one."""

import json
import re
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from resources.lake import sql_text
from resources.records.objects.log_reader import SAMPLE, RecordProblem, Records, record_of

MAGIC = b"PAR1"
BATCH_BYTES = 16 << 20
"""Uncompressed bytes of the rows that are converted together, by the file's own counts."""
MAX_BATCH_ROWS = 20_000

STRUCTURES = (
    "messages", "request", "tools", "functions", "conversations", "conversation", "traj", "metadata", "model_parameters",
    "preferred_output", "non_preferred_output", "preferred_completion", "non_preferred_completion", "rejected_messages",
    "history", "choices", "usage", "data", "body", "resourceSpans", "resourceLogs", "obj", "out", "usage_details",
    "cost_details", "tool_calls", "tool_definitions", "input_ids", "token_ids", "full_request", "full_response", "modelInput",
    "modelOutput", "identity", "requestMetadata",
)  # fmt: skip
"""Columns in which a text that is JSON of a list or object is parsed."""
BESIDE = {"response": {"request", "call_type", "custom_id"}, "prompt": {"message_tree_id"},
    "labels": {"input_ids", "token_ids"},
    "input": {"choices", "preferred_output", "preferred_completion", "schemaType"}, "output": {"schemaType"},
    "params": {"custom_id"}, "result": {"custom_id"}, "error": {"modelInput", "key"}}  # fmt: skip
"""Columns whose text is parsed only if one on the right exists too; otherwise they hold what people wrote."""
CONVERSATIONS = ("prompt", "completion", "chosen", "rejected", "rejected_response")
"""Columns where only JSON of a message or a list of messages is parsed, because a prompt may itself be JSON."""


class _Watched:
    """A file that remembers its own errors, to distinguish storage errors from errors of the Parquet reader."""

    def __init__(self, file: Any):
        self._file, self.error = file, None
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        return self._call(self._file.read, size)

    def seek(self, place: int, whence: int = 0) -> int:
        return self._call(self._file.seek, place, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def flush(self) -> None: ...

    def _call(self, action, *arguments):
        try:
            return action(*arguments)
        except OSError as error:
            self.error = error
            raise


def read_parquet(file: Any) -> Iterator[Records | RecordProblem]:
    """The rows of one Parquet file. Raises OSError where its bytes cannot be read."""
    watched = _Watched(file)
    row = 1
    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            for batch in _batches(watched):
                rows = pa.array(range(row, row + len(batch)), pa.int64())
                yield records_of_batch(connection, batch, rows, row == 1)
                row += len(batch)
    except (pa.ArrowException, OSError, duckdb.Error) as error:
        if watched.error is not None:
            raise watched.error from error
        message = f"the Parquet file is damaged ({type(error).__name__}); the {row - 1} rows before that were read"
        yield RecordProblem(0, "damaged_file", message, b"")


def _batches(watched: _Watched) -> Iterator[pa.RecordBatch]:
    opened = pq.ParquetFile(pa.PythonFile(watched, mode="r"), buffer_size=1 << 20, pre_buffer=False)
    groups = [opened.metadata.row_group(index) for index in range(opened.metadata.num_row_groups)]
    widest = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=1)
    rows = min(max(int(BATCH_BYTES / max(widest, 1)), 1), MAX_BATCH_ROWS)
    yield from opened.iter_batches(batch_size=rows)


def records_of_batch(connection: duckdb.DuckDBPyConnection, batch: pa.RecordBatch, rows: pa.Array, first: bool) -> Records:
    """The rows of a batch as JSON objects, with their numbers. first: with the object's first records as a sample."""
    texts = [field.name for field in batch.schema if _is_text(field.type)]
    connection.register("batch", pa.Table.from_batches([batch]))
    written = connection.sql(
        sql_text("reading/extraction/parquet_records"),
        params={
            **_null_patterns(batch.schema),
            "structures": [name for name in STRUCTURES if name in texts]
            + [name for name, beside in BESIDE.items() if name in texts and beside & set(batch.schema.names)],
            "conversations": [name for name in CONVERSATIONS if name in texts],
        },
    ).to_arrow_table()
    connection.unregister("batch")
    raw = written["raw"].cast(pa.large_string()).combine_chunks()
    texts = raw.slice(0, SAMPLE).to_pylist() if first else []
    return Records(rows, raw, [record for line in texts if (record := record_of(line)) is not None])


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _null_patterns(schema: pa.Schema) -> dict[str, str]:
    """Patterns of a null field in JSON text without spaces. A quote inside a text is escaped, so none matches there."""
    names = "|".join(sorted(re.escape(json.dumps(name)[1:-1]) for name in _field_names(schema) - {"content"}))
    return {"later": f',"(?:{names})":null', "first": f'\\{{"(?:{names})":null,', "only": f'\\{{"(?:{names})":null\\}}'}


def _field_names(fields: Any) -> set[str]:
    names = set()
    for field in fields:
        names.add(field.name)
        if pa.types.is_nested(field.type):
            names |= _field_names([field.type.field(index) for index in range(field.type.num_fields)])
    return names
