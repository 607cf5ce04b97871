"""A server for as long as a block runs: it waits, explains failures, and leaves no process behind, however its owner ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import urllib3
from stand_in_server import living, stand_in, started

from model_ops.jobs.job import Stopped
from model_ops.serving import server_guard
from model_ops.serving.server_process import NotRunnable, ServerFailed, cause_in, running_server

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("server process")]

HOLD = """
import sys, time
from pathlib import Path
from model_ops.serving.server_process import running_server
with running_server([sys.argv[1], "-m", "vllm"], log=Path(sys.argv[2]), start_s=60):
    print("up", flush=True)
    time.sleep(600)
"""


def run(folder, start_s=30.0, **more):
    return running_server([folder / "python", "-m", "vllm"], log=folder / "server.log", start_s=start_s, **more)


def test_the_block_begins_when_the_server_can_be_asked_and_the_server_ends_with_it(tmp_path):
    stand_in(tmp_path, late_s=1)
    with run(tmp_path) as server:
        assert urllib3.request("GET", f"{server.url}/v1/models").status == 200
        assert not server.ends_within(0.01) and server.started_s >= 1 and 1 < server.memory_mb() < 1_000
        assert len(living(tmp_path)) == 2
    assert living(tmp_path) == [] and "the server starts" in (tmp_path / "server.log").read_text()
    assert started(tmp_path)[0][2:5] == ["--host", "127.0.0.1", "--port"]


def test_a_block_that_fails_ends_the_server_too(tmp_path):
    stand_in(tmp_path)
    with pytest.raises(KeyError), run(tmp_path):
        raise KeyError
    assert living(tmp_path) == []


def test_a_server_that_ends_is_explained_by_its_cause_and_its_engine_is_ended(tmp_path):
    stand_in(
        tmp_path,
        exits="(EngineCore pid=7) ERROR 11-25 [core.py:1] ValueError: head size 7 is not supported\n"
        "(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above.",
    )
    (tmp_path / "server.log").write_text("OSError: of an earlier server\n")
    with pytest.raises(ServerFailed) as failed, run(tmp_path):
        pass
    assert str(failed.value) == "it ended with exit code 1 before it could be asked: ValueError: head size 7 is not supported"
    assert living(tmp_path) == []


def test_a_server_that_cannot_be_asked_in_time_is_ended(tmp_path):
    stand_in(tmp_path, late_s=600)
    with pytest.raises(ServerFailed, match=r"it could not be asked after 1 s: the server starts"), run(tmp_path, 1.0):
        pass
    assert living(tmp_path) == []


def test_a_request_to_stop_ends_a_server_that_starts(tmp_path):
    def check():
        if started(tmp_path):
            raise Stopped

    stand_in(tmp_path, late_s=600)
    with pytest.raises(Stopped), run(tmp_path, check=check):
        pass
    assert living(tmp_path) == []


def test_what_is_no_program_is_refused(tmp_path):
    (tmp_path / "python").write_text("text")
    with pytest.raises(NotRunnable, match=r"python cannot be run \(Permission denied\)"), run(tmp_path):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_owner_leaves_no_server(tmp_path, number):
    """Python's own handling of SIGTERM ends a process as suddenly as SIGKILL does."""
    stand_in(tmp_path)
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "python", tmp_path / "server.log"], text=True, stdout=subprocess.PIPE
    )
    assert owner.stdout.readline() == "up\n" and len(living(tmp_path)) == 2
    os.kill(owner.pid, number)
    owner.wait()
    owner.stdout.close()
    until = time.monotonic() + 20
    while living(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert living(tmp_path) == []


def test_a_message_of_several_lines_is_quoted_to_its_end(tmp_path):
    log = tmp_path / "server.log"
    log.write_text(
        "(APIServer pid=6)     return f(x)\n(APIServer pid=6) pydantic.ValidationError: 1 error for ModelConfig\n"
        "(APIServer pid=6)   Value error, max_model_len is too large\n(APIServer pid=6) done\n"
    )
    assert cause_in(log) == "pydantic.ValidationError: 1 error for ModelConfig Value error, max_model_len is too large"


def test_the_line_that_is_quoted_is_short_and_printable(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("\x1b[31m" + "x" * 1_000 + "\n\n")
    assert cause_in(log) == (" [31m" + "x" * 1_000).strip()[:300]
    log.write_text("")
    assert cause_in(log) == ""


def test_shared_memory_of_a_server_goes_with_it(tmp_path):
    """As vLLM has it: a server with shared memory and a process that removes it, which SIGTERM does not end."""
    made = tmp_path / "names"
    script = tmp_path / "server.py"
    script.write_text(f"""
import signal, sys, time
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=1 << 16)
open({str(made)!r}, "w").write(memory.name)
signal.signal(signal.SIGTERM, lambda *_: __import__("os")._exit(0))  # it ends without tidying up itself
time.sleep(60)
""")
    server = subprocess.Popen([sys.executable, script], start_new_session=True)
    while not made.exists() or not made.read_text():
        time.sleep(0.02)
    segment = Path("/dev/shm") / made.read_text().lstrip("/")
    assert segment.exists()
    server_guard.end_group(server)
    assert not segment.exists()
