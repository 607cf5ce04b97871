"""Following a run: what the terminal learns from the events that a run writes."""

from rich.console import Console

from pipelines.running.display import _Watch


class Over:
    """A run that has ended."""

    pid = 2**22 - 1

    def poll(self):
        return 0

    def stop(self):
        raise AssertionError("nobody asked for this")


def watch(tmp_path, lines):
    events = tmp_path / "events.jsonl"
    events.write_text("".join(line + "\n" for line in lines))
    console = Console(record=True, width=120)
    outcome = _Watch(Over(), console, {"sft_model": 90}).until_the_end(events)
    return outcome, console.export_text()


def test_steps_are_timed_and_shown_with_their_budget(tmp_path):
    said = '{"event": "progress", "phase": "training", "done": 5, "total": 10, "unit": "steps", "rate": 2.0, "eta_s": 3}'
    message = '{"event": "step", "step": "sft_model", "state": "finished", "at": 112.5}'
    outcome, text = watch(tmp_path, ['{"event": "step", "step": "sft_model", "state": "started", "at": 100.0}', said, message])
    assert outcome.seconds == {"sft_model": 12.5}
    assert "sft_model" in text
    assert "12.5 s of about 90 s" in text


def test_a_failed_step_and_a_refusal_leave_their_sentences(tmp_path):
    said = '{"event": "step", "step": "sft_model", "state": "started", "at": 1.0}'
    message = '{"event": "step", "step": "sft_model", "state": "failed", "at": 2.0, "message": "the tokenizer is missing"}'
    outcome, text = watch(tmp_path, [said, message, '{"event": "refused", "message": "no log objects"}'])
    assert outcome.messages == ["sft_model: the tokenizer is missing", "no log objects"]
    assert "✗ sft_model" in text and outcome.seconds == {"sft_model": 1.0} and outcome.finished == []


def test_a_check_that_fails_is_said(tmp_path):
    outcome, text = watch(tmp_path, ['{"event": "check", "step": "release_candidate", "check": "gates_hold", "passed": false}'])
    assert outcome.messages == ["release_candidate: the check gates_hold did not pass"] and not outcome.failed
    reason = '{"event": "check", "step": "length_report", "check": "c", "passed": false, "description": "no test row is left"}'
    assert watch(tmp_path, [reason])[0].messages == ["length_report: the check c did not pass: no test row is left"]
    assert "FAILED" in text


def test_a_workers_warning_and_note_are_shown_as_they_are(tmp_path):
    said = '{"event": "warning", "message": "checkpoint step-4 is torn [1/2]"}'
    _, text = watch(tmp_path, [said, '{"event": "note", "message": "no pinned memory here"}'])
    assert "! checkpoint step-4 is torn [1/2]" in text
    assert "no pinned memory here" in text


STEP = (
    '{"event": "step", "step": "sft_model", "state": "started", "at": 100.0}',
    '{"event": "step", "step": "sft_model", "state": "finished", "at": 100.4}',
)


def test_a_reused_step_says_who_made_it_and_no_seconds(tmp_path):
    reused = (
        '{"event": "reused", "step": "sft_model", "version": "19f929b46a42", "made_at": "2026-11-21T12:03:09+02:00", '
        '"run": "1a2b3c4d-0000-0000-0000-000000000000"}'
    )
    outcome, text = watch(tmp_path, [STEP[0], reused, STEP[1]])
    assert "✓ sft_model              reused (made 2026-11-21 10:03 UTC, run 1a2b3c4d)" in text
    assert " s of about 90 s" not in text
    assert outcome.reused == {"sft_model"}


def test_a_reused_step_of_which_little_is_known_prints_no_none(tmp_path):
    for more, said in (
        ("", "reused\n"),
        (', "made_at": null, "run": null', "reused\n"),
        (', "made_at": "2026-11-21T10:03:09"', "reused (made 2026-11-21 10:03 UTC)\n"),
        (', "run": "1a2b3c4d"', "reused (run 1a2b3c4d)\n"),
    ):
        _, text = watch(tmp_path, [STEP[0], '{"event": "reused", "step": "sft_model"' + more + "}", STEP[1]])
        assert text.endswith(said)
        assert "None" not in text


def test_a_step_that_is_made_after_it_was_reused_counts(tmp_path):
    outcome, text = watch(tmp_path, [STEP[0], '{"event": "reused", "step": "sft_model"}', STEP[1], *STEP])
    assert outcome.reused == set()
    assert "0.4 s of about 90 s" in text


def test_a_step_that_waits_for_another_run_says_so_once(monkeypatch):
    from types import SimpleNamespace

    import dagster as dg

    import pipelines.running.run as module

    said = []
    monkeypatch.setattr(module, "relay", said.append)
    listener = module._Listener({"sft_model"}, None)
    event_type = dg.DagsterEventType.ENGINE_EVENT
    message = "Step still blocked by limit for pool worker"
    event = SimpleNamespace(step_key="toy__sft_model", event_type=event_type, is_step_event=True, message=message)
    for _ in range(3):
        listener(SimpleNamespace(dagster_event=event, timestamp=1.0))
    assert said == [
        {
            "event": "note",
            "message": "sft_model waits: another run on this lake is at work, and one step of its kind runs at a time",
        }
    ]


def test_a_step_that_waits_names_the_run_and_the_step_that_it_waits_for(monkeypatch, tmp_path):
    import json
    import os

    import psutil

    import pipelines.running.run as module
    from pipelines.running.submission import EVENTS, STARTED

    other = tmp_path / "20260601-1"
    other.mkdir()
    (other / STARTED).write_text(json.dumps({"process": f"{os.getpid()}@{psutil.Process().create_time():.2f}"}))
    (other / EVENTS).write_text(
        "".join(
            json.dumps(event) + "\n"
            for event in (
                {"event": "step", "step": "base_model", "state": "started", "at": 1.0},
                {"event": "step", "step": "base_model", "state": "finished", "at": 2.0},
                {"event": "step", "step": "student_model", "state": "started", "at": 3.0},
            )
        )
        + '{"event": "step", "st'
    )
    said = []
    monkeypatch.setattr(module, "relay", said.append)
    module._Listener({"sft_model"}, None, tmp_path / "mine")._waits("sft_model")
    assert said[0]["message"].startswith(
        f"sft_model waits: another run (process {os.getpid()}) is at student_model, and one step"
    )


def test_a_run_that_was_stopped_in_a_worker_is_not_a_failed_one(monkeypatch, tmp_path):
    import dagster as dg
    import pytest

    import pipelines.running.run as module
    from resources.lake.lake import LakeLayout
    from resources.launching.local_launcher import WorkerStopped, is_launched

    @dg.asset
    def sft_model():
        raise WorkerStopped("stopped")

    monkeypatch.setattr(module, "relay", lambda event: None)
    graph = dg.Definitions(assets=[sft_model], jobs=[dg.define_asset_job("train", [sft_model])])
    request = module.RunRequest(id="one", recipe=tmp_path / "shop.yaml", lake=tmp_path / "lake", folder=tmp_path)
    with dg.DagsterInstance.ephemeral() as instance:
        with pytest.raises(KeyboardInterrupt):
            module._execute(graph, "train", [sft_model.key], instance, LakeLayout.open(tmp_path / "lake"), {}, request)
        [run] = instance.get_runs()
        assert run.status == dg.DagsterRunStatus.CANCELED
        repository = run.remote_job_origin.repository_origin
        assert repository.get_label() == run.tags_for_storage()[".dagster/repository"] == "__repository__@shop"
        assert run.tags["dagster/code_location"] == "shop" and not is_launched(run)
