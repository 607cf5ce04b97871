"""Keys of log records that nothing reads, and the `fields` that would read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import yaml
from pydantic import BaseModel, ConfigDict

from model_ops.jobs import counted
from resources.lake import Tables
from resources.sources import SourceSettings


class MixedWorkloads(BaseModel):
    """Workloads that the records of one source name."""

    model_config = ConfigDict(extra="forbid")

    source: str
    workload: str
    records: dict[str, int]
    """Numbers of records by the workload that they name."""
    unasked: list[str]
    """Names that neither the recipe's workload nor the source's `workloads` has."""

    @property
    def what(self) -> str:
        shown = ", ".join(f"{name} ({count:,})" for name, count in self.records.items())
        return (
            f"the records of source {self.source} name {len(self.records)} workloads, {shown}, and all of them become rows "
            f"of {self.workload}"
        )

    @property
    def remedy(self) -> str:
        apart, one = (yaml_line({name: meant or name for name in self.unasked}) for meant in ("", self.workload))
        return f"sources.{self.source}.workloads: {apart} keeps them apart, and {one} says that they are one"

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


def mixed_workloads(name: str, source: SourceSettings, records: Mapping[str, int], workload: str) -> MixedWorkloads | None:
    """records: by the workload that they name, those that go elsewhere by the source's `workloads` included or not."""
    own = {each: count for each, count in sorted(records.items()) if source.workloads.get(each, workload) == workload}
    unasked = [each for each in own if each not in source.workloads and each != workload]
    return MixedWorkloads(source=name, workload=workload, records=own, unasked=unasked) if unasked and len(own) > 1 else None


def yaml_line(mapping: Mapping[str, str]) -> str:
    """A mapping as YAML on one line, to copy into a recipe."""
    return yaml.safe_dump(dict(mapping), default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9).strip()


MOST_SHOWN, MOST_UNREAD = 12, 200
"""Most keys of a source in a sentence, and in the report of a run."""


class UnreadKey(BaseModel):
    """A path that nothing reads, the field that would read it ("" where none fits), and how many records have it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    field: str
    records: int

    @classmethod
    def of(cls, written: list) -> UnreadKey:
        path, field, records = written
        return cls(path=path, field=field, records=records)


def sum_keys(keys: Iterable[UnreadKey]) -> list[UnreadKey]:
    """One entry a path: first those that a field would read, then those that most records have."""
    by_path: dict[str, UnreadKey] = {}
    for key in keys:
        known = by_path.get(key.path, key.model_copy(update={"records": 0}))
        by_path[key.path] = UnreadKey(path=key.path, field=known.field or key.field, records=known.records + key.records)
    return sorted(by_path.values(), key=lambda key: (not key.field, -key.records, key.path))


def fields_of(keys: Iterable[UnreadKey]) -> dict[str, str]:
    """The fields that would read the keys: of two for one column, the one that most records have."""
    fields: dict[str, str] = {}
    for key in keys:
        if key.field:
            fields.setdefault(key.field, key.path)
    return fields


def fields_line(fields: Mapping[str, str]) -> str:
    return f"fields: {yaml_line(fields)}"


def unread_text(keys: list[UnreadKey], given: Mapping[str, str] | None = None) -> str:
    """What nothing reads, in one sentence, and the line that would read some of it. given: the fields that the source has."""
    shown = ", ".join(f"{key.path} ({counted(key.records, 'record')})" for key in keys[:MOST_SHOWN])
    left = len(keys) - MOST_SHOWN
    more = f' and {left:,} more (`millrace sql "select uri, unread_keys from objects"`)' if left > 0 else ""
    proposed = fields_of(keys)
    fields = fields_line({**proposed, **(given or {})})
    line = f"; under the source, {fields} would read {', '.join(proposed.values())}" if proposed else ""
    return f"{counted(len(keys), 'key')} {'is' if len(keys) == 1 else 'are'} read by nothing: {shown}{more}{line}"


def unread_in(tables: Tables) -> dict[tuple[str, str], list[UnreadKey]]:
    """Unread keys of every object that was read, by workload and source."""
    table = tables.open("objects") if tables.files("objects") else None
    if table is None or "unread_keys" not in table.schema().to_arrow().names:
        return {}
    keys_of: dict[tuple[str, str], list[UnreadKey]] = {}
    for row in table.to_pyarrow_table(columns=["workload", "source", "unread_keys"]).to_pylist():
        if row["unread_keys"]:
            keys_of.setdefault((row["workload"], row["source"]), []).extend(map(UnreadKey.of, json.loads(row["unread_keys"])))
    return {place: sum_keys(keys) for place, keys in keys_of.items()}
