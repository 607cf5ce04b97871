"""The workloads of a lake, and the name of one that a person gives."""

import difflib

from resources.endpoints import workloads_with_endpoints
from resources.lake import LakeError, LakeLayout


def workloads_of(lake: LakeLayout) -> list[str]:
    """Every workload that has rows, artefacts or an endpoint."""
    names = {path.name for kind in ("dataset", "model", "release") for path in lake.artefacts(kind).glob("*") if path.is_dir()}
    names |= {path.name.partition("=")[2] for path in lake.table("interactions").glob("workload=*")}
    return sorted(names | set(workloads_with_endpoints(lake)))


def known_workload(lake: LakeLayout, name: str) -> str:
    """The name. Raises LakeError if the lake has no such workload; the message names those that there are."""
    known = workloads_of(lake)
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}" if known else "it has none yet"
    raise LakeError(f"the lake {lake.place} has no workload {name!r}; {meant}")
