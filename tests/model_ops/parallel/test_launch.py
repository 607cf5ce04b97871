"""Which process a job over several of them died of, and when all of them are started again."""

import json
import signal

import pytest
import torch.distributed.run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from model_ops.parallel.launch import main


def failure(rank, code, at_s):
    one = ProcessFailure(local_rank=rank, pid=1, exitcode=code, error_file="")
    one.timestamp = at_s
    return one


def launched(monkeypatch, capsys, lives, restarts=0):
    lives = iter(lives)

    def run(_arguments):
        found = next(lives)
        if found:
            raise ChildFailedError("worker", {rank: failure(rank, code, at_s) for rank, (code, at_s) in found.items()})

    monkeypatch.setattr(torch.distributed.run, "run", run)
    code = main(["job.json", "--processes", "2", "--restarts", str(restarts)])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()], len(list(lives))


KILLED = {0: (1, 100), 1: (-signal.SIGKILL, 100)}


def test_a_process_that_was_killed_is_told(monkeypatch, capsys):
    code, events, _ = launched(monkeypatch, capsys, [KILLED])
    assert code == 1 and events == [{"event": "died", "rank": 1, "signal": "SIGKILL"}]


@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGKILL, 110), (signal.SIGABRT, 5), (signal.SIGTERM, 0)])
def test_processes_that_end_because_another_one_said_an_error_did_not_die_of_themselves(monkeypatch, capsys, number, seconds):
    code, events, _ = launched(monkeypatch, capsys, [{0: (-number, 100 + seconds), 1: (1, 100)}], restarts=3)
    assert code == 1 and events == []


def test_all_start_again_after_a_kill_as_often_as_was_allowed(monkeypatch, capsys):
    code, events, left = launched(monkeypatch, capsys, [KILLED, KILLED, None], restarts=2)
    assert code == 0 and left == 0
    assert [event["event"] for event in events] == ["died", "warning", "restarted"] * 2
    assert events[1]["message"].startswith("process 1 of 2 ended with SIGKILL; all of them start again")
    code, events, left = launched(monkeypatch, capsys, [KILLED, KILLED, None], restarts=1)
    assert code == 1 and left == 1 and events[-1]["event"] == "died"


def test_an_error_that_was_said_is_not_tried_again(monkeypatch, capsys):
    code, events, left = launched(monkeypatch, capsys, [{1: (1, 100)}, None], restarts=3)
    assert code == 1 and events == [] and left == 1
