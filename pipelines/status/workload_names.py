"""Checks the name of a workload that a person gives."""

import difflib

from pipelines.status.lake_status import workloads_of
from resources.lake import LakeError, LakeLayout


def known_workload(lake: LakeLayout, name: str) -> str:
    """The name. Raises LakeError if the lake has no such workload; the message names those that there are."""
    known = workloads_of(lake)
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}" if known else "it has none yet"
    raise LakeError(f"the lake {lake.place} has no workload {name!r}; {meant}")
