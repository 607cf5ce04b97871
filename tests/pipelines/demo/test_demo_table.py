"""The demo's closing table of seconds."""

from pipelines.demo.run_demo import BUDGET, _time_section
from pipelines.running.outcome import Outcome


def test_a_fresh_demo_is_judged_against_the_whole_budget():
    section = _time_section(Outcome(seconds=dict.fromkeys(BUDGET, 1.0), peak_memory_mb=900.0), BUDGET)
    assert section.rows[-1] == ["in all", f"{len(BUDGET)}.0", str(sum(BUDGET.values())), "900"]
    assert "reused" not in section.note


def test_reused_stages_are_not_judged():
    reused = set(BUDGET) - {"release_candidate", "endpoint", "around the steps"}
    outcome = Outcome(seconds={**dict.fromkeys(reused, 0.2), "release_candidate": 1.0}, reused=reused)
    section = _time_section(outcome, BUDGET)
    rows = {row[0]: row[1:] for row in section.rows}
    assert rows["sft_model"] == ["reused", "", ""]
    assert rows["release_candidate"][:2] == ["1.0", str(BUDGET["release_candidate"])]
    assert rows["in all"][1] == str(BUDGET["release_candidate"] + BUDGET["endpoint"] + BUDGET["around the steps"])
    assert f"{len(reused)} stages were finished by an earlier run" in section.note


def test_one_reused_stage_is_said_in_the_singular():
    assert "1 stage was finished by an earlier run and reused: its budget is not counted" in _time_section(
        Outcome(reused={"traffic"}), BUDGET).note
