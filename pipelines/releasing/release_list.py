"""Lists releases: `millrace releases`."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

from model_ops.wording import counted
from pipelines.terminal.text_table import print_table, text_table
from resources.artefacts.manifest import ManifestError, read_manifest
from resources.lake import Lake
from resources.releasing.endpoints import Endpoint, standing
from resources.releasing.gate_result import missed
from resources.releasing.release import ReleaseError, ReleaseRef, erased_rows, read_release
from resources.releasing.release_names import UnknownReleaseError
from resources.releasing.release_signature import is_signed
from resources.releasing.rolled_back import rollback_of


def releases_of(lake: Lake, workload: str = "") -> list[dict[str, Any]]:
    """Every readable release, newest first. Raises ReleaseError for a workload that has none."""
    home = lake.artefacts("release")
    known = sorted({path.parent.parent.name for path in home.glob("*/*/manifest.json")})
    if workload and workload not in known:
        raise UnknownReleaseError(f"{lake.place} has no release of {workload!r}; there are: {', '.join(known) or 'none yet'}")
    found = []
    for name in [workload] if workload else known:
        entries, aliases = Endpoint(lake, name).seen()
        for path in home.glob(f"{name}/*/manifest.json"):
            try:
                release, made = read_release(path.parent), read_manifest(path.parent)
            except (ReleaseError, ManifestError):
                continue
            misses = [gate.name for gate in release.gates if missed(gate)]
            back = rollback_of(entries, path.parent.name)
            found.append({
                "workload": name, "version": path.parent.name, "made": made.created_at.isoformat(timespec="minutes"),
                "decision": standing(entries, ReleaseRef.of(path.parent)) or "none yet",
                "aliases": [alias for alias, version in aliases.all().items() if version == path.parent.name],
                "gates_missed": misses, "signed": is_signed(path.parent),
                "erased_rows": erased_rows(lake, release),
                "rolled_back": back and {"by": back.by, "at": back.at.isoformat(timespec="seconds"), "reason": back.reason}})
    return sorted(found, key=lambda row: (row["workload"], row["made"]), reverse=True)


def releases_as_json(found: list[dict[str, Any]]) -> str:
    return json.dumps(found, indent=2)


def print_releases(found: list[dict[str, Any]], console: Console) -> None:
    if not found:
        console.print("There is no release yet: millrace run RECIPE makes one.")
        return
    rows = []
    for row in found:
        missing = ", ".join(row["gates_missed"])
        remarks = [f"rolled back by {row['rolled_back']['by']}"] if row["rolled_back"] else []
        remarks += ["signed"] if row["signed"] else []
        remarks += [counted(row["erased_rows"], "erased row")] if row["erased_rows"] else []
        rows.append([row["workload"], row["version"], row["made"][:10], row["decision"], ", ".join(row["aliases"]),
                     f"missed: {missing}" if missing else "hold", ", ".join(remarks)])
    names = ("workload", "release", "made", "decision", "aliases", "gates", "remarks")
    print_table(text_table(names, rows, box=None, header_style="bold"), console)
