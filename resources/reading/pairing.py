"""Joins records in two parts, which may lie in different objects: requests and responses of a batch API, by `custom_id`, and of
vLLM's log, by the request's id. Files pair up within a folder; words such as inputs/ or _output are left out of path and name,
and where a folder has several requests with one id, the file name decides. All such files of a folder are read in one batch, so
the order in which objects arrive does not matter.

    pairing_key("s3://logs/batches/2026-06-01/outputs/b1_output.jsonl")     # .../2026-06-01, b1
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import duckdb
import pyarrow as pa

from resources.lake import rows, run, sql_text
from resources.reading.span_events import JoinReport
from resources.records import LINES, Extraction, Format
from resources.sources import LedgerEntry

SIDES = {f"{word}{plural}" for word in ("input", "output", "request", "response", "result", "error") for plural in ("", "s")}
"""Words in a path that distinguish requests from responses."""
PAIRS_TOGETHER = 20_000
"""Pairs that are extracted at a time."""


class Pairing:
    """The pairs of one batch. A format's select fills the table `pair_sides`; `pair` joins them once all objects are read."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, extraction: Extraction):
        self._connection, self._extraction = connection, extraction

    def pair(self, form: Format, entries: Mapping[int, LedgerEntry], failed: Sequence[int]) -> JoinReport:
        """Extracts each pair as one record at the position of its response; sides without a partner go to quarantine. entries:
        the batch's objects by index. failed: objects that could not be read; their sides are left out."""
        self._connection.execute(sql_text("reading/batch/delete_objects").format(table="pair_sides"), {"objects": failed})
        self._connection.register("places", _places(entries))
        run(self._connection, "reading/pairing/pair_matches", form=form.name)
        run(self._connection, "reading/pairing/matched_pairs")
        run(self._connection, f"reading/formats/{form.name}/pairs")
        run(self._connection, "reading/pairing/quarantine_unpaired", form=form.name)
        self._connection.unregister("places")
        requests = run(self._connection, "reading/pairing/paired_requests").fetchall()
        partners: dict[int, set[str]] = {}
        for index, other in run(self._connection, "reading/pairing/partners").fetchall():
            partners.setdefault(index, set()).add(entries[other].uri)
        for page in self._pages():
            self._extraction.extract_pairs(form, page)
        # a request counts as part of its response's record
        return JoinReport({index: -count for index, count in requests}, partners, {})

    def _pages(self) -> Iterator[pa.Table]:
        begin, number, fielded = 0, PAIRS_TOGETHER, self._extraction.fielded
        while page := rows(self._connection, "reading/pairing/page", begin=begin, number=number, fielded=fielded).cast(LINES):
            yield page
            begin += PAIRS_TOGETHER


def _places(entries: Mapping[int, LedgerEntry]) -> pa.Table:
    objects = sorted(entries)
    keys = [pairing_key(entries[index].uri) for index in objects]
    return pa.table(
        {
            "object": pa.array(objects, pa.int32()),
            "source": pa.array([entries[index].source for index in objects], pa.string()),
            "folder": pa.array([folder for folder, _ in keys], pa.string()),
            "stem": pa.array([stem for _, stem in keys], pa.string()),
        }
    )


def pairing_key(uri: str) -> tuple[str, str]:
    """The folder and the name of an object, without the words that distinguish requests from responses."""
    *folders, name = uri.split("/")
    words = re.split(r"[_\-. ]+", name.split(".", 1)[0])
    return (
        "/".join(folder for folder in folders if folder.lower() not in SIDES),
        "_".join(word for word in words if word.lower() not in SIDES),
    )


def with_unreadable_partners(
    entries: Mapping[int, LedgerEntry], listed: Collection[str], unreadable: Collection[str]
) -> dict[int, str]:
    """Objects that must wait because a partner is gone or cannot be read, each with the reason.

    Read alone, such an object would lose the pairs that are already in the tables. `entries` are readable objects by index,
    `listed` all uris of this run, `unreadable` uris that failed. An object that waits makes its own partners wait too.
    """
    waiting: dict[int, str] = {}
    lost = set(unreadable)
    spreading = True
    while spreading:
        spreading = False
        for index, entry in entries.items():
            missing = [uri for uri in entry.partners if uri not in listed or uri in lost]
            if index not in waiting and missing:
                waiting[index] = f"{missing[0]} holds the other side of its request-response pairs and cannot be read"
                lost.add(entry.uri)
                spreading = True
    return waiting


def partners_to_reread(paired: Sequence[LedgerEntry], wanted: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """Batch files to read again because another file of their folder is being read.

    `paired` are all known batch files, `wanted` the files to be read now. A file whose partners are gone is left out, so the
    rows that were made from it stay.
    """
    if not paired:
        return []
    chosen = {(entry.source, entry.uri) for entry in wanted}
    here = {entry.uri for entry in (*paired, *wanted)}
    while torn := {
        entry.uri
        for entry in paired
        if entry.uri in here and (entry.source, entry.uri) not in chosen and not here.issuperset(entry.partners)
    }:
        here -= torn
    folders = {(entry.source, pairing_key(entry.uri)[0]) for entry in wanted}
    return [
        entry
        for entry in paired
        if entry.uri in here
        and (entry.source, entry.uri) not in chosen
        and (entry.source, pairing_key(entry.uri)[0]) in folders
    ]
