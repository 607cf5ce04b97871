"""What `millrace decisions` prints: every decision, and the last one in full."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from pipelines.status.decisions_text import decisions_json, print_decisions
from pipelines.status.workload_names import known_workload
from resources.deciding.causes import RetrainingCause
from resources.deciding.options import weigh
from resources.lake.lake import LakeError, LakeLayout
from tests.resources.deciding.examples import COSTS, FACTS, NOW, SEEN, decision


def printed(decisions, count=20):
    out = io.StringIO()
    print_decisions(decisions, Console(file=out, width=200), count)
    return out.getvalue()


def weighed():
    options, action, why = weigh(RetrainingCause("new_logs", "", ""), SEEN, COSTS, FACTS, [], NOW)
    evidence = {"devices": 1, "drafting": ["the drafter with K = 3 pays up to about 7.2 requests at a time"]}
    return decision(
        2,
        0,
        "waiting",
        cost_s=None,
        cause_text="300 rows were logged",
        options=options,
        action=action,
        why=why,
        evidence=evidence,
    )


def test_an_empty_table_says_how_to_switch_it_on():
    assert "automation: {decide: {enabled: true}}" in printed([])


def test_the_last_decision_is_told_in_full():
    shown = printed([decision(1, gain=0.04), weighed()])
    assert "+4.0%" in shown and "released" in shown and "drafter_continued" in shown
    assert "300 rows were logged." in shown and "from requests a day" in shown and "costs less and is enough" in shown
    assert "speculator 15 min" in shown
    assert "The drafter with K = 3 pays up to about 7.2 requests at a time." in shown


def test_only_the_newest_are_shown_and_json_has_all():
    every = [replace(decision(number), decision_id=f"d{number}") for number in range(5)]
    assert "d4" in printed(every, 2) and "d1 " not in printed(every, 2)
    assert [each["decision_id"] for each in json.loads(decisions_json(every))] == ["d0", "d1", "d2", "d3", "d4"]


def test_an_unknown_workload_is_named_with_the_nearest(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    with pytest.raises(LakeError, match="it has none yet"):
        known_workload(lake, "shop")
    (lake.artefacts("model") / "shop").mkdir(parents=True)
    assert known_workload(lake, "shop") == "shop"
    with pytest.raises(LakeError, match="did you mean shop"):
        known_workload(lake, "shpo")
