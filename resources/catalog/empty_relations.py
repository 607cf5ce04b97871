"""Why a relation of the catalog may have no rows: what fills it.

    why_empty("from drift")          # "no rows: drift compares days with ..."
"""

from __future__ import annotations

import re

RUN = "nothing was made yet: millrace run RECIPE"
RELEASED = "no release was made yet: millrace run RECIPE makes one, and its gates are measured"
FILLED_BY = {
    "objects": "no logs were looked for yet: millrace run RECIPE", "interactions": "no logs were read yet: millrace run RECIPE",
    "cleaned_interactions": "no logs were cleaned yet: millrace run RECIPE", "decisions": RUN, "artefacts": RUN, "models": RUN,
    "datasets": RUN, "metrics": RUN, "lineage": RUN, "edges": RUN, "nodes": RUN, "dataset_rows": RUN,
    "feedback": "no source held feedback that was read (millrace inspect LOGS shows what a log has)",
    "quarantine": "every log line could be read", "judgements": "no judge was asked (curation.judge in the recipe)",
    "contamination": "no evaluation suite was looked for in the traffic (evals in the recipe)",
    "retired": "retention removed no rows (retention in the recipe)", "erasures": "nobody was forgotten (millrace forget)",
    "releases": RELEASED, "gates": RELEASED, "evaluations": RELEASED, "measurements": RELEASED, "acceptance": RELEASED,
    "endpoints": RELEASED, "approvals": "no person decided on a release yet (millrace approve)",
    "serving_metrics": "no server was read yet: millrace serve does it, and millrace scrape reads one that runs",
    "acceptance_by_shape": "no request was captured from a server that reports acceptance (millrace serve --capture)",
    "drift": "days are compared with the traffic that a release learnt: there is no release yet, or no later day",
    "retraining_decisions": "no retraining was decided on yet (automation.decide, or millrace retrain)",
}
_SOURCE = re.compile(r'\b(?:from|join)\s+"?([a-z_]\w*)', re.IGNORECASE)
_FILTERS = re.compile(r"\b(?:where|having|qualify|limit|offset|join|sample)\b", re.IGNORECASE)


def why_empty(statement: str) -> str:
    """A sentence for a query without rows: why the relation has none, or that the query leaves none."""
    names = [name.lower() for name in _SOURCE.findall(statement)]
    if _FILTERS.search(statement) is None and len(names) == 1 and names[0] in FILLED_BY:
        return f"no rows in {names[0]}: {FILLED_BY[names[0]]}"
    return "no rows"
