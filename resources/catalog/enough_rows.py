"""Says why a run should stop after curation, and why a relation may have no rows.

    shortage(lake, "tutor", RecordCounts.of(manifest), ["gateway", "app"], seeds=0)     # one sentence; "" if the run can go on
    count_records(lake, "tutor", version)    # RecordCounts
    why_empty("from drift")                  # "no rows: drift compares days with ..."

Counts come from the catalog: records read, kept, dropped by each rule, quarantined.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from model_ops.jobs import counted
from resources.catalog.catalog import query
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
    left = f"{counted(counts.kept, 'row')} of {counted(counts.read, 'record')} can be trained on"
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
    if not counts.kept and not seeds:
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


RUN = "nothing was made yet: millrace run RECIPE"
FEEDBACK = "no source held feedback that was read (millrace inspect LOGS shows what a log has)"
RELEASED = "no release was made yet: millrace run RECIPE makes one, and its gates are measured"
FILLED_BY = {
    "objects": "no logs were looked for yet: millrace run RECIPE",
    "interactions": "no logs were read yet: millrace run RECIPE",
    "cleaned_interactions": "no logs were cleaned yet: millrace run RECIPE",
    "decisions": RUN,
    "decisions_history": RUN,
    "artefacts": RUN,
    "models": RUN,
    "datasets": RUN,
    "metrics": RUN,
    "lineage": RUN,
    "lineage_edges": RUN,
    "lineage_nodes": RUN,
    "weight_lineage": RUN,
    "view_files": RUN,
    "metrics_lines": RUN,
    "rollouts": "no model was trained by reinforcement (rft in the recipe)",
    "sampled_answers": "no model answered prompts while it was trained (preference.on_policy in the recipe)",
    "edges": RUN,
    "nodes": RUN,
    "dataset_rows": RUN,
    "feedback": FEEDBACK,
    "feedback_records": FEEDBACK,
    "quarantine": "every log line could be read",
    "judgements": "no judge was asked (curation.judge in the recipe)",
    "contamination": "no evaluation suite was looked for in the traffic (evals in the recipe)",
    "retired": "retention removed no rows (retention in the recipe)",
    "erasures": "nobody was forgotten (millrace forget)",
    "releases": RELEASED,
    "gates": RELEASED,
    "approvals": "no person decided on a release yet (millrace approve)",
    "champions": "no release was approved yet (millrace approve)",
    "tainted": "no artefact learnt a row that was erased since (millrace forget)",
    "serving_metrics": "no server was read yet: millrace serve does it, and millrace scrape reads one that runs",
    "acceptance_by_shape": "no request was captured from a server that reports acceptance (millrace serve --capture); what the "
    "report of a release measured is in WORKLOAD_evaluation_report_acceptance",
    "drift": "days are compared once the reference window is full (drift.reference_days in the recipe) and a later day is "
    "over; drift/WORKLOAD.html in the lake says how many days there are",
    "retraining_decisions": "no retraining was decided on yet (automation.decide, or millrace retrain)",
}
FILLED_BY_ENDING = {
    "_bad_lines": "every line of the seeds could be read",
    "_contaminated_seeds": "no seed holds an item of an evaluation suite",
    "_evaluation_report_task_scores": "no evaluation suite was asked (evals in the recipe)",
    "_evaluation_report_acceptance": "no drafter was measured (speculator in the recipe)",
}
_SOURCE = re.compile(r'\b(?:from|join)\s+"?([a-z_]\w*)', re.IGNORECASE)
_FILTERS = re.compile(r"\b(?:where|having|qualify|limit|offset|join|sample)\b", re.IGNORECASE)


def why_empty(statement: str) -> str:
    """A sentence for a query without rows: why the relation has none, or that the query leaves none."""
    names = [name.lower() for name in _SOURCE.findall(statement)]
    if _FILTERS.search(statement) is None and len(names) == 1:
        name = names[0].removesuffix("_versions")
        why = FILLED_BY.get(name) or next((why for ending, why in FILLED_BY_ENDING.items() if name.endswith(ending)), "")
        return f"no rows in {names[0]}: {why}" if why else "no rows"
    return "no rows"
