"""The step at work: lines for a pipe, a bar for a terminal."""

import io
import re

import pytest
from rich.console import Console

from pipelines.running.display import StepProgress


def event(done, **numbers):
    return {"event": "progress", "phase": "sft", "done": done, "total": 800, "unit": "steps", **numbers}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def lines_of(seconds, every=1.0, events=lambda now: None):
    clock, out = Clock(), io.StringIO()
    with StepProgress(Console(file=out, width=200), clock) as shown:
        shown.begin("sft_model")
        while clock.now < seconds:
            clock.now += every
            if heard := events(clock.now):
                shown.hear(heard)
            shown.look()
        shown.end()
    return out.getvalue().splitlines()


def test_a_pipe_gets_a_line_after_half_a_minute_and_then_ever_fewer():
    lines = lines_of(400, events=lambda now: event(int(now), loss=2.0))
    assert lines == [
        "  sft_model, 30 s: sft: 30 of 800 steps, 13 min left, loss 2.000, 1.0 steps/s",
        "  sft_model, 2 min: sft: 90 of 800 steps, 12 min left, loss 2.000, 1.0 steps/s",
        "  sft_model, 4 min: sft: 210 of 800 steps, 10 min left, loss 2.000, 1.0 steps/s",
    ]


def test_a_short_step_leaves_no_line_and_a_silent_one_says_that_it_works():
    assert lines_of(29) == []
    assert lines_of(31) == ["  sft_model, 30 s: working"]


def test_ten_hours_leave_a_short_log():
    assert len(lines_of(36_000, every=5.0)) < 70


def test_what_is_waited_for_is_named():
    clock, out = Clock(), io.StringIO()
    with StepProgress(Console(file=out, width=200), clock) as shown:
        shown.waits_for("nothing began")
        shown.hear(event(1))
        shown.begin("sft_model")
        shown.waits_for("loading the model and its data")
        clock.now = 40.0
        shown.look()
    assert out.getvalue() == "  sft_model, 40 s: loading the model and its data\n"


def on_a_terminal(*events, width=120):
    clock, out = Clock(), io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None)
    with StepProgress(console, clock) as shown:
        shown.begin("sft_model")
        for one in events:
            clock.now += 1.0
            shown.hear(one)
            shown.look()
        shown._bars.refresh()
    return out.getvalue()


def test_a_bar_says_starting_then_the_time_left():
    begun = on_a_terminal(event(1, eta_s=882.0, rate=0.0))
    assert "1 of 800 steps  starting" in begun
    assert "left" not in begun and "steps/s" not in begun
    assert "13 min left" in on_a_terminal(*(event(done) for done in range(1, 9)))


def test_on_a_narrow_terminal_the_time_left_is_not_what_is_cut():
    shown = on_a_terminal(*(event(done, loss=2.0, tokens_per_second=3000, mfu=0.4) for done in range(1, 9)), width=100)
    assert "13 min left" in shown


def test_brackets_in_a_phase_are_no_markup():
    assert "odd [bold] phase" in on_a_terminal({**event(1), "phase": "odd [bold] phase"})


@pytest.mark.parametrize("width", [80, 120])
def test_step_and_time_are_whole_on_a_narrow_terminal(width):
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    with StepProgress(console) as shown:
        shown.begin("curated_interactions")
        shown.waits_for("a phase that says more than anybody has room for, again and again, until the line is over")
        shown.hear(event(400, phase="answers of the target and of its drafter", loss=2.0))
        shown._bars.refresh()
    lines = re.sub(r"\x1b\[[?\d]*[A-Za-z]", "", out.getvalue()).replace("\r", "\n").splitlines()
    assert max(map(len, lines)) <= width
    [*_, last] = [line for line in lines if "answers" in line]
    assert "curated_interactions" in last and "0:00:00" in last and "400 of 800 steps" in last
