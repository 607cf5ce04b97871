"""The demo's closing table of seconds."""

from pipelines.demo.demo import _time_section
from pipelines.running.outcome import Outcome

PREDICTED = {"interactions": 2.0, "sft_model": 30.0, "release_candidate": 3.0, "around the steps": 18.0}


def test_a_fresh_demo_is_compared_with_what_was_predicted_and_its_budget():
    section = _time_section(Outcome(seconds=dict.fromkeys(PREDICTED, 1.0), peak_memory_mb=900.0), PREDICTED, 180)
    assert section.columns == ["stage", "seconds", "predicted", "peak memory (MB)"]
    assert section.rows[-1] == ["in all", "4.0", "53", "900"]
    assert "reused" not in section.note and "The budget is 180 s" in section.note


def test_reused_stages_are_not_judged():
    outcome = Outcome(
        seconds={"interactions": 0.2, "sft_model": 0.2, "release_candidate": 1.0}, reused={"interactions", "sft_model"}
    )
    section = _time_section(outcome, PREDICTED, 180)
    rows = {row[0]: row[1:] for row in section.rows}
    assert rows["sft_model"] == ["reused", "", ""]
    assert rows["release_candidate"][:2] == ["1.0", "3"]
    assert rows["in all"][1] == "21"
    assert "2 stages were finished by an earlier run" in section.note


def test_one_reused_stage_is_said_in_the_singular():
    assert (
        "1 stage was finished by an earlier run and reused: its prediction is not counted"
        in _time_section(Outcome(reused={"traffic"}), PREDICTED, 180).note
    )
