"""How fast a phase goes and how long it takes, from a worker's events."""

import pytest

from resources.launching.progress import PhasePace


def event(done, at, total=800, phase="sft", unit="steps", **numbers):
    return {"event": "progress", "phase": phase, "done": done, "total": total, "unit": unit, "at": at, **numbers}


def heard(*events):
    pace = PhasePace()
    for one in events:
        pace.hear(one)
    return pace


def test_the_first_reports_say_starting_and_no_time_left():
    pace = heard(event(1, 60.0, loss=2.1, tokens_per_second=12, rate=0.0, eta_s=882.0))
    assert pace.sentence() == "sft: 1 of 800 steps, starting, loss 2.100"
    pace.hear(event(2, 60.6))
    assert "starting" in pace.sentence() and "left" not in pace.sentence()


def test_the_time_before_the_first_report_is_not_in_the_estimate():
    pace = heard(*(event(done, 600.0 + 2 * done) for done in range(1, 6)))  # the first step ended after ten minutes
    assert pace.left_s == pytest.approx(2 * 795)
    assert pace.how_fast() == ["26 min left", "2.0 s a step"]


def test_an_estimate_follows_the_last_minute():
    slow = [event(done, 10.0 * done) for done in range(1, 31)]
    fast = [event(30 + done, 300.0 + done) for done in range(1, 101)]
    assert heard(*slow, *fast).left_s == pytest.approx(670, rel=0.01)


def test_steps_longer_than_the_window_are_measured():
    pace = heard(*(event(done, 300.0 * done, total=10) for done in range(1, 5)))
    assert pace.how_fast() == ["30 min left", "5 min a step"]


def test_a_few_large_pieces_are_enough_where_each_is_a_good_part():
    pace = heard(event(0, 0.0, 4, "acceptance", "temperatures"))
    assert pace.how_fast() == ["starting"]
    pace.hear(event(1, 50.0, 4, "acceptance", "temperatures"))
    assert pace.how_fast()[0] == "2 min left"


def test_a_long_step_says_how_far_it_is_and_keeps_the_figures_of_the_step_before():
    grades = {"pass_rate": 0.25, "reward": 0.5}
    pace = heard(event(0, 0.0, 8, "rft"), event(0, 1.0, 8, "rft", part="rollouts 0 of 8 prompts"))
    assert pace.sentence() == "rft: 0 of 8 steps, rollouts 0 of 8 prompts, starting"
    pace.hear(event(0, 300.0, 8, "rft", part="rollouts 4 of 8 prompts", sampled_per_second=40.2, **grades))
    assert pace.sentence() == (
        "rft: 0 of 8 steps, rollouts 4 of 8 prompts, starting, pass rate 25%, mean grade 0.50, 40 sampled tokens/s"
    )
    pace.hear(event(1, 600.0, 8, "rft", loss=0.1, tokens_per_second=30, **grades))
    for at in range(601, 900):  # many reports of one step
        pace.hear(event(1, float(at), 8, "rft", part="rollouts 2 of 8 prompts"))
    assert pace.sentence() == (
        "rft: 1 of 8 steps, rollouts 2 of 8 prompts, 70 min left, loss 0.100, pass rate 25%, mean grade 0.50, "
        "40 sampled tokens/s, 30 tokens/s"
    )


def test_a_resumed_phase_counts_from_where_it_begins():
    pace = heard(*(event(500 + done, float(done)) for done in range(1, 6)))
    assert pace.left_s == pytest.approx(295)


def test_another_phase_begins_anew():
    pace = heard(*(event(done, float(done)) for done in range(1, 20)), event(1, 20.0, phase="held-out loss", unit="tokens"))
    assert pace.how_fast() == ["starting"]


def test_without_a_total_the_count_is_said():
    pace = heard(*(event(10 * done, float(done), total=0, unit="turns") for done in range(1, 6)))
    assert pace.sentence() == "sft: 50 turns, 10 turns/s"
    assert heard(event(3, 0.0, total=None, unit="turns")).sentence() == "sft: 3 turns, starting"


def test_what_is_complete_is_finishing_and_one_of_one_is_singular():
    assert heard(event(0, 0.0, 1, "tokenizer", "tokenizers"), event(1, 9.0, 1, "tokenizer", "tokenizers")).sentence() == (
        "tokenizer: 1 of 1 tokenizer, finishing, 9.0 s a tokenizer"
    )
    assert "left" not in heard(*(event(done, 10.0 * done, total=5) for done in range(1, 6))).sentence()


def test_a_clock_that_stands_still_or_work_that_repeats_breaks_nothing():
    assert heard(*(event(done, 5.0) for done in range(1, 9))).how_fast() == ["starting"]
    assert heard(*(event(4, float(at)) for at in range(9))).how_fast() == ["starting"]
    assert heard(event(9, 1.0), event(3, 2.0)).how_far() == "3 of 800 steps"
    empty = PhasePace()
    assert (empty.starting, empty.rate, empty.left_s) == (True, None, None)


def test_utilisation_and_tokens_come_once_measured():
    pace = heard(*(event(done, float(done), loss=1.5, tokens_per_second=3100, mfu=0.412) for done in range(1, 6)))
    assert pace.how_fast() == ["13 min left", "loss 1.500", "3,100 tokens/s", "MFU 41%"]


def test_a_closed_terminal_does_not_stop_what_reports_to_it(tmp_path):
    from resources.launching.progress import relay

    relay({"event": "note", "message": "still here"}, tmp_path / "gone" / "progress.jsonl")
    assert not (tmp_path / "gone").exists()


def test_progress_lines_carry_their_time_and_name_what_is_waited_for(tmp_path):
    import io
    import json

    from resources.launching.local_launcher import LOADING, LocalLauncher

    class Worker:
        stdout = io.StringIO(
            '{"event": "ready"}\n{"event": "progress", "phase": "sft", "done": 1, "total": 9, "unit": "steps"}\n'
        )

    launcher = LocalLauncher(tmp_path / "progress.jsonl")
    assert [event["event"] for event in launcher._events(Worker(), None)] == ["ready", "progress"]
    waited, progress = map(json.loads, (tmp_path / "progress.jsonl").read_text().splitlines())
    assert waited == {"event": "phase", "phase": LOADING}
    assert progress["at"] > 1.7e9
