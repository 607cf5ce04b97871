"""Runs a format's SQL over log lines in DuckDB and checks the rows: into `staged`, `staged_feedback` and `quarantined`.
sql/reading/formats/<format>.sql names the columns that the format has, sql/reading/extraction.sql adds ids, hashes and checks.
For a record that fails a check, `route` may find another format."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from duckdb.func import SPECIAL

from model_ops.chat_apis import finish_reason_of, json_text, mend_json, responses_api
from resources.digests import hash_key, user_of
from resources.lake import run, sql_text
from resources.records.edits import edit_of
from resources.records.example_prompts import KEYS as EXAMPLE
from resources.records.example_prompts import prompt_of
from resources.records.field_mapping import MEASURES, measure_key
from resources.records.formats import BY_NAME, Format
from resources.records.json_paths import steps_of
from resources.records.moments import moment_of
from resources.records.normal_messages import call_turns, normal_messages
from resources.records.polarity import label_of, thumb_of
from resources.records.providers.calls import ENVELOPE, READ, TIMES, call_of, provider_chat_of
from resources.records.providers.context_elsewhere import NEEDLES, context_of
from resources.records.providers.langsmith_runs import KEYS as LANGSMITH
from resources.records.providers.langsmith_runs import run_of
from resources.records.providers.otlp import joined_call_of, model_call_of
from resources.records.synonyms import BESIDE, BODIES, Reader

_TEXT: Any = "VARCHAR"
BATCH_ROWS = 2048
"""Most rows of an Arrow batch: DuckDB's threads share a part's batches."""
BATCH_BYTES = 4 << 20
"""Most text of an Arrow batch with more than one row. DuckDB holds about 20 copies of a batch while it turns it into rows."""
LONG_LINE_BYTES = BATCH_BYTES // 64
"""Longer lines are extracted apart, at most CALL_BYTES or one at a time: DuckDB combines batches of less than 64 rows."""
CALL_BYTES = 8 << 20

MACROS = tuple(
    f"reading/{file}/{name}"
    for file, names in (
        (
            "macros",
            (
                "plain_moment",
                "moment",
                "time_problem",
                "logged_time",
                "names_nothing",
                "record_digest",
                "error_text",
                "choice_number",
                "parameters",
                "served_digest",
                "served_release",
                "beyond_messages",
                "placeholder_in",
                "unread_in",
                "is_weak_id",
                "user_name",
            ),
        ),
        (
            "message_macros",
            (
                "called",
                "openai_role",
                "openai_message",
                "openai_messages",
                "example_prompt",
                "unpreferred",
                "openai_tools",
                "openai_tool_calls",
                "otlp_call",
                "otlp_items",
                "transcript_messages",
                "templated_messages",
                "oasst_answers",
                "provider_calls",
            ),
        ),
    )
    for name in names
)

LINES = pa.schema([("object", pa.int32()), ("row", pa.int64()), ("raw", pa.large_string())])
"""Lines of a batch: the index of their object, their row in it, their text."""
Routing = Callable[[int, str, Format], Format | None]
"""(object index, text, format that could not extract the record) to the format that should read it, None for no format."""


@dataclass(frozen=True)
class ReroutedLine:
    """A line to read again: by another format, by the same one with its text repaired, or by none."""

    index: int
    row: int
    text: str
    format: Format | None


class Extraction:
    """Turns lines into checked rows. workloads: every workload of the recipe, `workload` first. fields: of the sources that
    name any, their paths by field."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        workload: str,
        workloads: Sequence[str],
        fields: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ):
        self._connection, self._workload, self._workloads = connection, workload, list(workloads)
        self._fields, self._readers = fields, dict[tuple[str, str], Reader]()
        one: tuple[Callable[..., Any], ...] = (
            user_of,
            call_turns,
            responses_api.chat_of,
            prompt_of,
            edit_of,
            provider_chat_of,
            normal_messages,
        )
        for function in one:
            connection.create_function(function.__name__, function, [_TEXT], _TEXT)
        takes_null: tuple[Callable[..., Any], ...] = (moment_of, context_of, finish_reason_of, label_of)
        for function in takes_null:
            connection.create_function(function.__name__, function, [_TEXT], _TEXT, null_handling=SPECIAL)
        connection.create_function("thumb_of", thumb_of, [_TEXT], "DOUBLE", null_handling=SPECIAL)
        connection.create_function("call_of", call_of, [_TEXT] * 2, _TEXT)
        connection.create_function("model_call_of", self._model_call_of, [_TEXT] * 2, _TEXT)
        connection.create_function("joined_call_of", self._joined_call_of, [_TEXT] * 3, _TEXT, null_handling=SPECIAL)
        connection.create_function("beside_of", self._beside_of, [_TEXT] * 3, _TEXT)
        self._attach(LINES.empty_table())  # DuckDB binds a macro that is a table when it is created
        for macro in MACROS:
            run(connection, macro)
        connection.unregister("lines")

    @property
    def fielded(self) -> list[str]:
        return list(self._fields)

    def extract(self, form: Format, lines: pa.Table, route: Routing) -> list[ReroutedLine]:
        """Extracts lines (schema LINES) as records of `form`. Returns the lines that must be read again; they left no row."""
        return [line for some in in_calls(lines, form.spans) for line in self._extract(form, some, route)]

    def _extract(self, form: Format, lines: pa.Table, route: Routing) -> list[ReroutedLine]:
        self._attach(lines)
        if form.spans:
            run(self._connection, f"reading/formats/{form.name}/calls", fielded=self.fielded)
            run(self._connection, f"reading/formats/{form.name}/sides")
        if "interactions" in form.fills:
            self._stage_interactions(form)
        else:
            self._look_beside(form, looks=False)
        if form.paired:
            run(self._connection, f"reading/formats/{form.name}/pair_sides")
        self._check_feedback(form)
        rerouted = self._reroute_faulty(form, route)
        if "interactions" in form.fills:
            run(self._connection, "reading/extraction/quarantine_checked")
        self._count_unread(form)
        if "feedback" in form.fills or looks_beside(form) or self._fields:
            run(self._connection, "reading/feedback/stage_feedback")
            run(self._connection, "reading/feedback/quarantine_feedback")
        rerouted += self._repair_surrogates(form)
        run(self._connection, "reading/extraction/quarantine_lines")
        self._connection.unregister("lines")
        return rerouted

    def extract_pairs(self, form: Format, lines: pa.Table) -> None:
        """Extracts records that pairing joined; a record that fails a check goes to quarantine."""
        for some in in_calls(lines):
            self._attach(some)
            self._stage_interactions(form)
            self._check_feedback(form)
            run(self._connection, "reading/extraction/quarantine_checked")
            self._count_unread(form)
            run(self._connection, "reading/feedback/stage_feedback")
            self._connection.unregister("lines")

    def extract_joined_spans(self, form: Format, lines: pa.Table) -> None:
        """Extracts spans that were joined with their log records; a record that fails a check goes to quarantine."""
        self._attach(lines)
        run(self._connection, "reading/spans/joined_calls")
        self._stage_interactions(form)
        self._check_feedback(form)
        self._count_unread(form)
        for query in ("spans/quarantine_joined", "feedback/stage_feedback", "feedback/quarantine_feedback"):
            run(self._connection, f"reading/{query}")
        self._connection.unregister("lines")

    def _attach(self, lines: pa.Table) -> None:
        from resources.records.repeated_keys import with_last_values  # loads numba

        self._connection.register("lines", pa.Table.from_batches(_batches(with_last_values(lines)), LINES))
        run(self._connection, "reading/extraction/records")

    def _reader(self, source: str, form: str) -> Reader:
        reader = self._readers.get((source, form))
        if reader is None:
            fields = self._fields.get(source, {})
            if form.startswith("fields:"):
                fields = {name: f"{BESIDE}.{measure_key(name, steps_of(fields[name]))}" for name in MEASURES if name in fields}
            reader = self._readers[source, form] = Reader(keys_read(BY_NAME[form]), fields)
        return reader

    def _model_call_of(self, item: str, source: str) -> str:
        return model_call_of(item, self._reader(source, "otlp"))

    def _joined_call_of(self, span: str | None, events: str, source: str) -> str:
        return joined_call_of(span, events, self._reader(source, "otlp"))

    def _beside_of(self, raw: str, source: str, form: str) -> str:
        reader = self._reader(source, form)
        try:
            record = json.loads(raw)
            if not looks_beside(BY_NAME[form]):
                return json_text({"named": reader.named(record)})
            lines = record.pop(JOINED_LINES, ())
            if form == "langsmith":
                record = {**run_of(record), "session_id": None}  # it is a project
            if form in _LABELLED:
                record |= {key: None for key in LABELS if label_of(str(record.get(key))) is not None}
            return json_text(reader.of(record, *lines))
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError):  # its SQL says it
            return "{}"

    def _look_beside(self, form: Format, looks: bool = True) -> None:
        fielded = [] if form.name.startswith("fields:") else self.fielded
        run(
            self._connection,
            "reading/extraction/beside",
            form=form.name,
            looks=looks and looks_beside(form),
            read=sorted(keys_read(form)),
            fielded=fielded,
            without=WITHOUT,
        )

    def _count_unread(self, form: Format) -> None:
        run(self._connection, "reading/formats/otlp/count_unread" if form.spans else "reading/extraction/count_unread")

    def _stage_interactions(self, form: Format) -> None:
        self._look_beside(form)
        self._view("extracted", f"reading/formats/{form.rows_as or form.name}/interactions")
        run(
            self._connection,
            "reading/extraction/stage",
            workload=self._workload,
            user_hash_key=hash_key(),
            needles=NEEDLES,
            is_mapped=form.name.startswith("fields:"),
        )

    def _check_feedback(self, form: Format) -> None:
        select = f"reading/formats/{form.name}/feedback"
        labelled = form.name in _LABELLED
        self._view("extracted_feedback", select if "feedback" in form.fills else None, turns=form.turns, labelled=labelled)
        run(
            self._connection,
            "reading/feedback/checked_feedback",
            workload=self._workload,
            workloads=self._workloads,
            user_hash_key=hash_key(),
        )

    def _view(self, name: str, select: str | None, **flags: bool) -> None:
        select = sql_text(select or "reading/feedback/without_feedback")
        self._connection.execute(sql_text(f"reading/extraction/{name}").format(rows=select, **flags))

    def _reroute_faulty(self, form: Format, route: Routing) -> list[ReroutedLine]:
        if form.streamed:  # joined from pieces of a stream: no other format can read it
            return []
        faulty = run(self._connection, "reading/extraction/faulty_records").fetchall()
        routed = [ReroutedLine(index, row, text, route(index, text, form)) for index, row, text in faulty]
        others = [line for line in routed if line.format is not form]
        self._delete(others, "staged", "checked_feedback", "pair_sides")
        return others

    def _repair_surrogates(self, form: Format) -> list[ReroutedLine]:
        run(self._connection, "reading/extraction/lines_without_record")
        lines = run(self._connection, "reading/extraction/surrogate_lines").fetchall()
        repaired = [ReroutedLine(index, row, whole, form) for index, row, text in lines if (whole := mend_json(text))]
        self._delete(repaired, "lines_without_record")
        return repaired

    def _delete(self, lines: Sequence[ReroutedLine], *tables: str) -> None:
        if not lines:
            return
        places = pa.table(
            {
                "object": pa.array([line.index for line in lines], pa.int32()),
                "row": pa.array([line.row for line in lines], pa.int64()),
            }
        )
        self._connection.register("rerouted", places)
        for table in tables:
            self._connection.execute(sql_text("reading/extraction/delete_rerouted").format(table=table))
        self._connection.unregister("rerouted")


def in_calls(lines: pa.Table, all_apart: bool = False) -> Iterator[pa.Table]:
    """The lines that DuckDB may turn into rows at once. all_apart: the lines hold several records, so all count as long."""
    lengths = pc.binary_length(lines["raw"]).to_numpy()
    long = np.full(len(lengths), True) if all_apart else lengths > LONG_LINE_BYTES
    if not long.any():
        yield lines
        return
    if not long.all():
        yield lines.filter(pa.array(~long))
    apart = lines.filter(pa.array(long))
    for begin, end in _runs(lengths[long], CALL_BYTES):
        yield apart.slice(begin, end - begin)


def _runs(lengths: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    begin, ends = 0, np.cumsum(lengths)
    while begin < len(ends):
        before = ends[begin - 1] if begin else 0
        end = max(int(np.searchsorted(ends, before + most, "right")), begin + 1)
        yield begin, end
        begin = end


def _batches(lines: pa.Table) -> list[pa.RecordBatch]:
    """The lines in batches of at most BATCH_ROWS rows and BATCH_BYTES of text, or of one line."""
    return [
        batch.slice(begin, end - begin)
        for batch in lines.to_batches(BATCH_ROWS)
        for begin, end in _runs(pc.binary_length(batch["raw"]).to_numpy(zero_copy_only=False), BATCH_BYTES)
    ]


JOINED_LINES = "joined_lines"
"""Key under which a record that was joined from two lines has them, as pairing.sql writes it."""
_APART = frozenset(("otlp", "capture_note", "log_lines", "vllm", "vllm_lines", "tokens", "text", "oasst", "trajectories"))
"""Formats without a logger's keys beside their own: data sets, lines of text, spans with attributes (providers/otlp.py)."""
_LABELLED = frozenset(("prompt_completion", "messages", "alpaca", "sharegpt"))
"""Formats of data sets, which may say whether the last answer is wanted (KTO)."""
LABELS = ("kto_tag", "label", "Label", "kto_label", "is_desirable", "desirable")
"""The keys that say it; so does the SQL of extracted_feedback."""
_OWN: dict[str, frozenset[str]] = {
    "stored_completions": frozenset(
        (
            "object",
            "system_fingerprint",
            "service_tier",
            "seed",
            "temperature",
            "top_p",
            "stream",
            "store",
            "usage",
            "first_id",
            "last_id",
            "has_more",
            "metadata.workload_id",
            "metadata.client_id",
        )
    ),
    "sglang": frozenset(("obj",)),
    "messages": EXAMPLE | {"parallel_tool_calls"},
    "anthropic": frozenset(("request.metadata.user_id",)),
    "langsmith": LANGSMITH,
    "preferences": EXAMPLE
    | {"score_chosen", "score_rejected", "chosen_score", "rejected_score", "chosen_rating", "rejected_rating", "status"},
    **dict.fromkeys(("sharegpt", "alpaca", "prompt_completion"), EXAMPLE),
}
"""What formats read, or know and leave, in other ways than a path in their SQL."""
_BODY: dict[str, Any] = dict.fromkeys(sorted(BODIES - {"completion_tokens", "prompt_tokens"}))
WITHOUT = json.dumps({**_BODY, "request": _BODY, "response": _BODY})
"""Takes the contents out of a record, as a merge patch."""


def looks_beside(form: Format) -> bool:
    return ("interactions" in form.fills or form.paired) and _APART.isdisjoint((form.name, form.rows_as))


@lru_cache(maxsize=256)
def keys_read(form: Format) -> frozenset[str]:
    """Dotted paths that the format reads; what is below a path is read too, and `request` stands for a body."""
    if not looks_beside(form):
        return frozenset()
    name = form.rows_as or form.name
    text = sql_text(f"reading/formats/{name}/interactions")
    paths = {
        path
        for spec in re.findall(r"json_transform\(\s*raw,\s*'(.*?)'\s*\)", text, re.S)
        for path in _paths(json.loads(spec.replace("''", "'")))
    }
    paths |= set(re.findall(r"(?:raw, |raw ->> )'\$\.([\w.]+)'", text))
    if "provider_calls(" in text:
        paths |= {*ENVELOPE, *TIMES, *READ}
    paths |= {path.partition(".")[0] for path in paths if path.startswith(("request.", "response."))}
    return frozenset(paths | BODIES | _OWN.get(name, frozenset()))


def _paths(spec: Any, before: str = "") -> Iterator[str]:
    for key, inner in spec.items():
        if isinstance(inner, dict):
            yield from _paths(inner, f"{before}{key}.")
        else:
            yield before + key
