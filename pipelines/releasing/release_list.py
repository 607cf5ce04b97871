"""Lists releases and prints what differs between two: `millrace releases`, `millrace compare`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from model_ops.jobs import counted
from model_ops.verify import verify
from pipelines.terminal import print_table, text_table
from resources.endpoints import Endpoint, recheck, rollback_of, standing, workloads_with_endpoints
from resources.lake import LakeError, LakeLayout
from resources.manifests import TAINTED, ManifestError, erased_in, read_manifest
from resources.releases import ReleaseError, ReleaseRef, UnknownReleaseError, erased_rows, gate_problem, read_release
from resources.releasing import Difference, ReleaseComparison
from resources.signing import is_signed
from stores.mirror.location import url_at


def releases_of(lake: LakeLayout, workload: str = "") -> list[dict[str, Any]]:
    """Every readable release, newest first. Raises ReleaseError for a workload that has none."""
    home = lake.artefacts("release")
    known = sorted({path.parent.parent.name for path in home.glob("*/*/manifest.json")})
    if workload and workload not in known:
        raise UnknownReleaseError(f"{lake.place} has no release of {workload!r}; there are: {', '.join(known) or 'none yet'}")
    rows = []
    for name in [workload] if workload else known:
        entries, aliases = Endpoint(lake, name).seen()
        for path in home.glob(f"{name}/*/manifest.json"):
            try:
                release, manifest = read_release(path.parent), read_manifest(path.parent)
            except (ReleaseError, ManifestError):
                continue
            misses = [gate.name for gate in release.gates if gate_problem(gate)]
            back = rollback_of(entries, path.parent.name)
            rows.append(
                {
                    "workload": name,
                    "version": path.parent.name,
                    "made": manifest.created_at.isoformat(timespec="minutes"),
                    "decision": standing(entries, ReleaseRef.of(path.parent)) or "none yet",
                    "aliases": [
                        "not offered" if alias == "candidate" and misses else alias
                        for alias, version in aliases.all().items()
                        if version == path.parent.name
                    ],
                    "gates_missed": misses,
                    "gates_too_few": [gate.name for gate in release.gates if gate.state == "too few to tell"],
                    "signed": is_signed(path.parent),
                    "erased_rows": erased_rows(lake, release),
                    "rolled_back": back and {"by": back.by, "at": back.at.isoformat(timespec="seconds"), "reason": back.reason},
                }
            )
    return sorted(rows, key=lambda row: (row["workload"], row["made"]), reverse=True)


def releases_as_json(releases: list[dict[str, Any]]) -> str:
    return json.dumps(releases, indent=2)


def print_releases(releases: list[dict[str, Any]], console: Console) -> None:
    if not releases:
        console.print("There is no release yet: millrace run RECIPE makes one.")
        return
    rows = []
    for row in releases:
        missing, few = ", ".join(row["gates_missed"]), ", ".join(row["gates_too_few"])
        remarks = [f"rolled back by {row['rolled_back']['by']}"] if row["rolled_back"] else []
        remarks += ["signed"] if row["signed"] else []
        remarks += [counted(row["erased_rows"], "erased row")] if row["erased_rows"] else []
        rows.append(
            [
                row["workload"],
                row["version"],
                row["made"][:10],
                row["decision"],
                ", ".join(row["aliases"]),
                f"missed: {missing}" if missing else f"too few to tell: {few}" if few else "hold",
                ", ".join(remarks),
            ]
        )
    names = ("workload", "release", "made", "decision", "aliases", "gates", "remarks")
    print_table(text_table(names, rows, box=None, header_style="bold"), console)


def print_comparison(comparison: ReleaseComparison, console: Console) -> None:
    """Prints three tables; a table without rows is left out."""
    said = f"{comparison.workload}: release {comparison.release} against {comparison.other}"
    console.print(said, markup=False, highlight=False)
    for title, rows in (
        ("measured", comparison.measurements),
        ("made from", comparison.parts),
        ("settings", comparison.settings),
    ):
        if rows:
            console.print()
            console.print(_table(title, rows, comparison))
    if not (comparison.parts or comparison.settings):
        console.print("\nBoth were made from the same data, models, code and settings.")


def comparison_as_json(comparison: ReleaseComparison) -> str:
    return json.dumps(asdict(comparison), indent=2)


def _table(title: str, rows: Sequence[Difference], comparison: ReleaseComparison) -> Table:
    table = Table(box=None, header_style="bold")
    for name in (title, comparison.other, comparison.release):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(escape(row.what), escape(row.before or "-"), escape(row.after or "-"))
    return table


def verify_directory(directory: Path) -> list[str]:
    """One sentence per problem; none when everything agrees. Raises LakeError for a path that is not a directory."""
    if not directory.is_dir():
        raise LakeError(f"there is no directory {directory}; give one that holds a model, drafter, dataset or release")
    _fetch_if_mirrored(directory.resolve())
    if directory.resolve().name == "endpoints" and (directory.resolve().parent / "lake.json").exists():
        lake = LakeLayout.open(directory.resolve().parent, create=False)
        return [problem for workload in workloads_with_endpoints(lake) for problem in Endpoint(lake, workload).problems()]
    if not (directory / "release.json").exists():
        return [problem.sentence for problem in verify(directory)]
    release = read_release(directory)
    lake = LakeLayout.open(directory.resolve().parents[2], create=False)
    problems = recheck(lake, directory.resolve())
    target = lake.root / release.target.path
    problems += [f"{release.target.name}: {problem.sentence}" for problem in verify(target)]
    if release.base is not None:
        problems += [f"{release.base.name}: {problem.sentence}" for problem in verify(lake.root / release.base.path)]
    if release.speculator is not None:
        faults = verify(lake.root / release.speculator.path, target)
        problems += [f"{release.speculator.name}: {problem.sentence}" for problem in faults]
    return problems


def _fetch_if_mirrored(directory: Path) -> None:
    """Fetches the files of a directory that lies in the mirror of a lake in a bucket."""
    for root in directory.parents:
        if url_at(root) is not None:
            LakeLayout.open(root, create=False).mirror.fetch(directory)


def notes_on_erasures(directory: Path) -> list[str]:
    """What was erased from an artefact that agrees with its digests, or from what its weights learnt."""
    notes = []
    if (erasure := erased_in(directory)) is not None and erasure.rows:
        notes.append(f"{erasure.sentence} (erased.json): the digests are those after the erasure")
    if (directory / TAINTED).exists():
        notes.append("its weights learnt rows that were erased since (tainted.json)")
    return notes
