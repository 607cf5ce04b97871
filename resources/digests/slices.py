"""The digest of a table slice as an input of an artefact, independent of the layout of its files. A slice of which only counts
were kept counts as it was before (<lake>/counts/<workload>.json): otherwise artefacts that have learnt the rows would be stale,
and a run without new logs would make them again from no rows."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from model_ops.files import write_json, write_text
from resources.digests.sql import sql_digest
from resources.lake import LakeLayout, Tables, attach_slice, sql_text, stream, workbench


class AnswerCache:
    """The cached answers under one name."""

    def __init__(self, lake: LakeLayout, name: str, code: str):
        self._path, self._code = lake.root / ".remembered" / f"{name}.json", code
        self._answers: dict[str, str] = {}
        with suppress(OSError, ValueError, KeyError, TypeError):
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            if stored["made_by"] == code:
                self._answers = {str(key): str(answer) for key, answer in stored["answers"].items()}

    def get(self, key: str) -> str | None:
        return self._answers.get(key)

    def digest(self) -> str:
        """Of all answers: changes when an answer is added or dropped."""
        return hashlib.sha256(json.dumps(self._answers, sort_keys=True).encode()).hexdigest()

    def keep(self, answers: Mapping[str, str]) -> None:
        """Keeps these answers; drops all others."""
        if dict(answers) != self._answers:
            self._answers = dict(answers)
            with suppress(OSError):
                write_text(self._path, json.dumps({"made_by": self._code, "answers": self._answers}))


def partition_key(files: Iterable[str], *more: str) -> str:
    """sha256 over the names of files and what else an answer depends on. Delta never writes a file's name again."""
    return hashlib.sha256("\0".join([*more, "", *sorted(files)]).encode()).hexdigest()


DIGESTS = ("interactions", "cleaned_interactions", "feedback", "judgements")
AS_SERVED = "served"


def slice_digest(tables: Tables, name: str, workload: str, as_served: bool = False, remember: bool = True) -> str:
    """The digest of a slice as an input: of its rows, or of those that there were before only their counts were kept."""
    digest = rows_digest(tables, name, workload, as_served, remember)
    return counted_as(tables.lake, workload, AS_SERVED if as_served else name, digest)


def rows_digest(tables: Tables, name: str, workload: str, as_served: bool = False, remember: bool = True) -> str:
    """sha256 over a workload's days and the rows of each, sorted: by interaction_id and content_sha256; cleaned_interactions
    also by their cleaned values, feedback by a hash of each record as logged. as_served: parameters and token ids of each
    interaction count too. remember: whether digests of days are cached for the next call. Raises ValueError for a table without
    such rows."""
    if name not in DIGESTS or (as_served and name != "interactions"):
        raise ValueError(f"table {name} has no slice digest; those that have: {', '.join(DIGESTS)}")
    query = f"digests/{AS_SERVED if as_served else name}"
    memory = AnswerCache(tables.lake, f"{query}/{workload}", code=sql_digest(sql_text(query)))
    keys = {day: partition_key(files) for day, files in tables.files_by_day(name, workload).items()}
    known = {day: digest for day, key in keys.items() if (digest := memory.get(key)) is not None}
    if unread := sorted(set(keys) - set(known)):
        known |= _digests_of_days(tables, name, workload, unread, query)
    if remember:
        memory.keep({keys[day]: known[day] for day in sorted(keys)})
    rows_of_days = "".join(f"{day} {known[day]}\n" for day in sorted(keys) if known[day])
    return hashlib.sha256(rows_of_days.encode()).hexdigest()


def all_digests(tables: Tables, workload: str, digest: Callable[..., str] = slice_digest) -> dict[str, str]:
    return {name: digest(tables, name, workload) for name in DIGESTS} | {
        AS_SERVED: digest(tables, "interactions", workload, as_served=True)
    }


def _digests_of_days(tables: Tables, name: str, workload: str, days: Sequence[date], query: str) -> dict[date, str]:
    digests = {day: hashlib.sha256() for day in days}
    empty = set(days)
    with workbench() as connection:
        attach_slice(connection, tables, name, workload, days)
        for batch in stream(connection, query):
            for day, line in zip(batch.column("dt").to_pylist(), batch.column("line").to_pylist(), strict=True):
                digests[day].update(f"{line}\n".encode())
                empty.discard(day)
    return {day: "" if day in empty else digest.hexdigest() for day, digest in digests.items()}


class SliceDigests(BaseModel):
    """A slice's digest before its rows were removed, and after."""

    model_config = ConfigDict(extra="forbid")

    before: str
    after: str


_FILE = TypeAdapter(dict[str, SliceDigests])


def keep_slice_digests(lake: LakeLayout, workload: str, before: dict[str, str], after: dict[str, str]) -> None:
    place = _place(lake, workload)
    place.parent.mkdir(exist_ok=True)
    write_json(place, {name: {"before": before[name], "after": after[name]} for name in before})


def counted_as(lake: LakeLayout, workload: str, name: str, digest: str) -> str:
    """The digest that a slice counts as."""
    recorded = _read(lake, workload).get(name)
    return recorded.before if recorded is not None and recorded.after == digest else digest


def counts_alone(lake: LakeLayout, workload: str, digest: str) -> bool:
    """Whether a slice's digest is that of rows of which only counts were kept."""
    return any(recorded.before == digest != recorded.after for recorded in _read(lake, workload).values())


def _read(lake: LakeLayout, workload: str) -> dict[str, SliceDigests]:
    try:
        return _FILE.validate_json(_place(lake, workload).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def _place(lake: LakeLayout, workload: str) -> Path:
    return lake.root / "counts" / f"{workload}.json"
