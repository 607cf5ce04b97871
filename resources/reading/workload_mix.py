"""Finds workloads that a source mixes: names in its records that the recipe's workload gets without being asked to."""

from collections.abc import Mapping

import yaml
from pydantic import BaseModel, ConfigDict

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
