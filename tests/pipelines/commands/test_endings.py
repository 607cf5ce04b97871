"""How the command and its processes end: killed, interrupted, or with nobody reading. One sentence and the exit code."""

import errno
import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from model_ops.jobs import CheckFailed, Misuse
from pipelines import cli as command
from pipelines.running import submission as submitting
from pipelines.running.display import follow
from pipelines.running.outcome import traceback_in
from pipelines.terminal import shared_options as terminal
from resources.lake.lake import LakeLayout
from resources.launching.local_launcher import LocalLauncher, WorkerKilled, WorkerStopped
from resources.launching.processes import killed_sentence, memory_sentence
from tests.command import PROJECT
from tests.reports import process_report

DEBUG_LINES = "2026-06-01 10:00:00 +0000 - dagster - DEBUG - train - 1a2b - 42 - ENGINE_EVENT - Executing steps\n" * 5


@pytest.fixture
def ending(monkeypatch, capsys):
    """Exit code and what is said where a command ends with an error."""

    def run(error: BaseException) -> tuple[int, str]:
        def fail():
            raise error

        command._whole_app()  # commands are added once
        monkeypatch.setattr(terminal, "app", fail)
        monkeypatch.setattr(command, "end_process", sys.exit)
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            with pytest.raises(SystemExit) as end:
                command.main()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return end.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("Query interrupted"), SystemExit(130)])
def test_ctrl_c_ends_without_a_word(ending, error):
    assert ending(error) == (130, "")


def test_a_refusal_of_the_disk_is_a_sentence_and_not_an_errno(ending, tmp_path):
    place = LakeLayout.open(tmp_path / "lake").root
    code, said = ending(OSError(errno.EROFS, "Read-only file system", str(place / "endpoints" / "x.json")))
    assert code == 1 and said.startswith(f"millrace: the lake {place} is on a read-only file system") and "Errno" not in said
    expected = (1, "millrace: x.json: No such file or directory\n")
    assert ending(OSError(errno.ENOENT, "No such file or directory", "x.json")) == expected


def test_a_bug_shows_its_traceback(ending):
    with pytest.raises(ZeroDivisionError):
        ending(ZeroDivisionError("division by zero"))


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(tmp_path):
    from resources.catalog.build import rebuild

    lake = LakeLayout.open(tmp_path / "lake")
    rebuild(lake)
    words = ["sql", "from range(200000)", "--format", "csv", "--lake", str(lake.root)]
    with subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", *words], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as asked:
        assert asked.stdout.readline() == "range\n"
        asked.stdout.close()
        assert asked.stderr.read() == ""
        assert asked.wait() == 141


ABORTS = """
import atexit, ctypes, sys, threading, time
c = ctypes.CDLL(None)
c.__cxa_atexit(ctypes.cast(c.abort, ctypes.c_void_p), None, None)     # as native code does when it is taken apart
atexit.register(print, "exit handlers ran")
threading.Thread(target=lambda: (time.sleep(0.1), print("a thread ended"))).start()
sys.stdout.write("written ")
sys.argv = ["millrace", *sys.argv[1:]]
from pipelines.cli import main
main()
"""


@pytest.mark.parametrize(
    ("words", "code"), [(["--version"], 0), (["sql", "select 1", "--lake", "/nowhere"], 2), (["--no-such"], 2)]
)
def test_native_code_that_aborts_at_exit_changes_no_exit_code(words, code):
    done = subprocess.run([sys.executable, "-c", ABORTS, *words], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == code, process_report(done)
    assert (
        done.stdout.startswith("written ") and "a thread ended\n" in done.stdout and done.stdout.endswith("exit handlers ran\n")
    )


@pytest.mark.parametrize("closed", ["sys.stderr", "sys.stdout", "sys.stdout = sys.stderr"])
def test_an_output_that_was_closed_before_the_start_changes_no_exit_code(closed):
    code = f"import sys; {closed} = None; from model_ops.machine.process import end_process; end_process(3)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT).returncode == 3


def _forget_somebody_unknown(lake, times: int) -> set[int]:
    words = [sys.executable, "-m", "pipelines.cli", "forget", "--user", "nobody", "--lake", str(lake)]
    return {subprocess.run(words, cwd=PROJECT, capture_output=True).returncode for _ in range(times)}


@pytest.fixture
def small_lake(tmp_path):
    """A lake with interactions of two days."""
    from datetime import date

    from pipelines.demo.traffic import write_traffic
    from resources.lake.tables import Tables
    from resources.reading.ingestion import ingest
    from resources.sources.sources import SourceSettings

    write_traffic(tmp_path / "traffic", interactions=100, days=2, first_day=date(2026, 6, 1))
    lake = LakeLayout.open(tmp_path / "lake")
    ingest(Tables(lake), "tutor", {"gateway": SourceSettings(uri=str(tmp_path / "traffic" / "gateway"))})
    return lake.root


def test_to_forget_somebody_unknown_ends_with_its_own_exit_code(tmp_path):
    assert _forget_somebody_unknown(LakeLayout.open(tmp_path / "lake").root, 1) == {1}


@pytest.mark.thorough
@pytest.mark.slow
def test_to_forget_somebody_unknown_fifty_times(small_lake):
    assert _forget_somebody_unknown(small_lake, 50) == {1}


@pytest.fixture
def ended(monkeypatch, tmp_path):
    """What follow() says of a run whose process does what `code` says."""

    def run(code: str):
        monkeypatch.setattr(submitting, "python_module", lambda *_: [sys.executable, "-c", code])
        started = submitting.Run("one", tmp_path, submitting.start_process({}, tmp_path))
        return follow(started, Console(quiet=True))

    return run


def test_a_killed_run_is_one_sentence_without_dagsters_log(ended):
    outcome = ended(f"import os; print({DEBUG_LINES!r}, flush=True); os.kill(os.getpid(), 9)")
    [message] = outcome.messages
    assert outcome.exit_code == 1
    assert message.startswith("the run's process was killed (SIGKILL) before its job was done, as the system does when memory")
    assert "run again to continue" in message and "DEBUG" not in message and "\n" not in message


def test_a_killed_run_names_the_step_that_was_running(ended):
    outcome = ended(
        "import os; open(os.environ['MILLRACE_PROGRESS'], 'a').write("
        '\'{"event": "step", "step": "sft_model", "state": "started", "at": 1.0}\\n\'); os.kill(os.getpid(), 9)'
    )
    assert outcome.messages[0].startswith("sft_model: the run's process was killed")


def test_a_bug_of_a_run_shows_its_traceback_alone(ended):
    outcome = ended(f"print({DEBUG_LINES!r}, flush=True); raise ZeroDivisionError('division')")
    [message] = outcome.messages
    assert "which is a bug of millrace" in message and "ZeroDivisionError: division" in message and "DEBUG" not in message


def test_without_a_traceback_the_last_lines_are_shown_but_not_dagsters(tmp_path):
    log = tmp_path / "run.log"
    log.write_text(DEBUG_LINES + "free(): invalid pointer\n" + "\x1b[32m" + DEBUG_LINES)
    assert traceback_in(log) == "free(): invalid pointer"


def test_the_memory_of_a_killed_worker_is_said_beside_what_there_is():
    assert "memory runs out" in killed_sentence("the worker", "SIGKILL")
    assert "memory" not in killed_sentence("the worker", "SIGSEGV")
    assert memory_sentence(2048).startswith(" (2.0 of ") and memory_sentence(None) == ""


@pytest.mark.parametrize(("code", "error"), [("os.kill(os.getpid(), 9)", WorkerKilled), ("sys.exit(0)", WorkerStopped)])
def test_a_worker_that_ends_before_its_job_is_done(monkeypatch, tmp_path, code, error):
    import resources.launching.local_launcher
    from model_ops.jobs import Job

    monkeypatch.setattr(
        resources.launching.local_launcher,
        "python_module",
        lambda *_: [sys.executable, "-c", f"import os, sys; sys.stdin.readline(); {code}"],
    )
    with LocalLauncher() as launcher, pytest.raises(error):
        launcher.run(Job(operation="quantize", output=tmp_path / "out", inputs={"model": tmp_path}))


def test_what_a_worker_prints_can_be_kept_from_the_terminal(monkeypatch, tmp_path, capfd):
    import resources.launching.local_launcher
    from model_ops.jobs import Job

    monkeypatch.setattr(
        resources.launching.local_launcher,
        "python_module",
        lambda *_: [sys.executable, "-c", "import sys; sys.stdin.readline(); print('Traceback', file=sys.stderr); sys.exit(3)"],
    )
    with LocalLauncher(worker_log=tmp_path / "logs" / "worker.log") as launcher, pytest.raises(Exception, match="exit code 3"):
        launcher.run(Job(operation="quantize", output=tmp_path / "out", inputs={"model": tmp_path}))
    assert capfd.readouterr().err == ""
    assert (tmp_path / "logs" / "worker.log").read_text() == "Traceback\n"


def test_interrupted_in_duckdb_is_stopped_and_not_failed():
    from pipelines.running.run import DUCKDB_INTERRUPTED, _Listener

    listener = _Listener(set(), LakeLayout(os.devnull))
    error = type(
        "Info",
        (),
        {"cls_name": "RuntimeError", "message": f"RuntimeError: {DUCKDB_INTERRUPTED}\n", "cause": None, "context": None},
    )()
    listener._failed("interactions", error, 1.0)
    assert listener.interrupted


CALLS = """
import sys
from pipelines.cli import _carry_out
for line in sys.stdin:
    sys.argv = ["millrace", *line.strip().split(" | ")]
    print(sys.argv[1], _carry_out(), sorted({"dagster", "torch", "transformers", "numba"} & set(sys.modules)))
"""
COMMANDS = (
    ("sql", "select nope"), ("sql", "drop table x"), ("why", "nothing-there"), ("approve", "zzzzzz"), ("rollback", "no-such"),
    ("lineage", "no/such"), ("diff", "no/sft_dataset"), ("decisions", "no-such"),
)  # fmt: skip


def test_errors_import_nothing_heavy(tmp_path):
    from resources.lake.lake import LakeLayout

    lakes = {False: LakeLayout.open(tmp_path / "lake").root, True: tmp_path / "none"}
    asked = [(*words, "--lake", str(lakes[words[0] == "show"])) for words in (*COMMANDS, ("show", "recipes/demo.yaml"))]
    done = subprocess.run(
        [sys.executable, "-c", CALLS],
        input="\n".join(map(" | ".join, asked)),
        cwd=PROJECT,
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == [f"{words[0]} 2 []" for words in asked], done.stderr
    assert done.stderr.count("millrace: ") == len(asked), done.stderr


def test_each_error_knows_its_exit_code():
    from pipelines.contract.text import RecipeProblemsError
    from resources.releases.release import UnknownReleaseError
    from stores.s3 import GoneError

    assert (Misuse.exit_code, CheckFailed.exit_code) == (2, 1)
    assert [RecipeProblemsError.exit_code, UnknownReleaseError.exit_code, GoneError.exit_code] == [2, 2, 1]
