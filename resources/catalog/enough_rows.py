"""Says why a run should stop after curation, and why a relation may have no rows."""

import re
from collections.abc import Collection

from model_ops.jobs import counted
from resources.catalog.catalog import query
from resources.catalog.comments import DATASETS, RELATIONS
from resources.curating import RecordCounts
from resources.lake import LakeLayout, sql_text

LEAST_SHARE = 0.1
"""Share of the bytes from which a source without a row stops the run, and of the records that have to be readable."""
_REMEDY = (
    '`millrace check RECIPE` says what format or fields would read them, and `millrace sql "select source_uri, '
    'source_row, message from quarantine limit 5"` shows some'
)
MOST_RULES = 4


def shortage(lake: LakeLayout, workload: str, counts: RecordCounts, sources: Collection[str], seeds: int) -> str:
    """Why too few rows are left; "" if there are enough. seeds: number of sources of examples beside the traffic."""
    quarantined = sum(counts.quarantined.values())
    left = f"{counted(counts.rows, 'row')} of {counted(counts.read, 'record')} can be trained on"
    lost = query(lake, sql_text("curating/record_counts/lost_sources"), {"workload": workload, "sources": sorted(sources)})
    for source in lost.to_pylist():
        if source["share"] >= LEAST_SHARE:
            its = f"its {counted(source['objects'], 'object')}, {source['share']:z.0%} of the logs' bytes"
            return (
                f"source {source['source']} left no row: {its}, cannot be read ({source['code']}: {source['message']}), "
                f"and {left}; correct its format or fields, or take it out of the recipe; {_REMEDY}"
            )
    if quarantined and counts.read - quarantined < LEAST_SHARE * counts.read:
        return f"{quarantined:,} records are in quarantine ({_rules(counts.quarantined)}), and {left}; {_REMEDY}"
    if not counts.rows and not seeds:
        return (
            f"no row is left to train on: of {counts.read:,} records, {sum(counts.dropped.values()):,} were dropped and "
            f"{quarantined:,} are in quarantine ({_rules(counts.dropped | counts.quarantined) or 'none was read'}); "
            "loosen the rules under curation, or add logs whose requests have answers"
        )
    return ""


def _rules(counts: dict[str, int]) -> str:
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{rule} {count:,}" for rule, count in order[:MOST_RULES])


def count_records(lake: LakeLayout, workload: str, curate_version: str) -> RecordCounts:
    """Counts a workload's records at one version of its curation. Raises CountsError unless they add up."""
    parameters = {"workload": workload, "curate_version": curate_version}
    rows = query(lake, sql_text("curating/record_counts/by_decision"), parameters).to_pylist()
    read, elsewhere = (
        query(lake, sql_text(f"curating/record_counts/records_{which}"), {"workload": workload}).to_pylist()[0]["records"]
        for which in ("read", "elsewhere")
    )

    def by_rule(outcome: str) -> dict[str, int]:
        return {f"{row['stage']}: {row['rule']}": row["records"] for row in rows if row["outcome"] == outcome}

    counts = RecordCounts(read, sum(by_rule("kept").values()), by_rule("dropped"), by_rule("quarantined"), elsewhere)
    counts.check()
    return counts


_SOURCE = re.compile(r'\b(?:from|join)\s+"?([a-z_]\w*)', re.IGNORECASE)
_FILTERS = re.compile(r"\b(?:where|having|qualify|limit|offset|join|sample)\b", re.IGNORECASE)


def why_empty(statement: str) -> str:
    """A sentence for a query without rows: why the relation has none, or that the query leaves none."""
    names = [name.lower() for name in _SOURCE.findall(statement)]
    if _FILTERS.search(statement) is None and len(names) == 1:
        name = names[0].removesuffix("_versions")
        of_dataset = (said for dataset, said in DATASETS.items() if name.endswith(f"_{dataset}"))
        why = (RELATIONS.get(name) or next(of_dataset, {})).get("empty")
        return f"no rows in {names[0]}: {why}" if why else "no rows"
    return "no rows"
