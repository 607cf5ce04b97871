"""torchrun whose agent and processes are forks of one process, so that torch and transformers are imported once for all runs.

    outcome = forked_torchrun(main, arguments, restarts=1, folder=folder)      # exit code, stdout, stderr

The agent, its rendezvous, its restarts and its error reports are torchrun's own (`torch.distributed.run`); only the start of
a process is another. tests/resources/launching/test_launcher_processes.py starts torchrun by its command.

An agent that starts processes again has threads by then, and a fork of it may wait for ever for a lock that one of them held.
So an agent that does not end within LONGEST_S is killed with its processes and started once more; a second time is an error.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

LONGEST_S = 300.0


def forked_torchrun(
    main: Callable[..., object], arguments: Sequence[str], folder: Path, processes: int = 2, restarts: int = 0
) -> dict[str, str | int]:
    """Runs main(*arguments) on `processes` processes. What they print is kept in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(2):
        code = _ended(_started(main, arguments, folder, processes, restarts))
        if code is not None:
            return {"code": code, **{name: (folder / name).read_text() for name in ("stdout", "stderr")}}
    raise TimeoutError(f"{folder.name} did not end within {LONGEST_S:g} s, twice: {(folder / 'stderr').read_text()[-2000:]}")


def _ended(agent: int) -> int | None:
    """The agent's exit code; None if it had to be killed."""
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        pid, status = os.waitpid(agent, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    return None


def _started(main: Callable[..., object], arguments: Sequence[str], folder: Path, processes: int, restarts: int) -> int:
    """The agent's process id, which leads a group of its own."""
    agent = os.fork()
    if agent == 0:
        os.setsid()
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        code = 1
        try:
            config, _, _ = config_from_args(
                parse_args(
                    [
                        "--nproc-per-node",
                        str(processes),
                        "--max-restarts",
                        str(restarts),
                        "--rdzv-backend",
                        "c10d",
                        "--rdzv-endpoint",
                        "localhost:0",
                        "--rdzv-id",
                        folder.name,
                        __file__,
                    ]
                )
            )
            config.start_method = "fork"
            elastic_launch(config, main)(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return agent
