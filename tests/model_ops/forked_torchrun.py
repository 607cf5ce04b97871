"""torchrun whose agent and processes are forks of one process, so that torch and transformers are imported once for all runs.

    outcome = forked_torchrun(main, arguments, restarts=1, folder=folder)      # exit code, stdout, stderr

The agent, its rendezvous, its restarts and its error reports are torchrun's own (`torch.distributed.run`); only the start of
a process is another. tests/resources/test_launcher_processes.py starts torchrun by its command.
"""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args


def forked_torchrun(main: Callable[..., object], arguments: Sequence[str], folder: Path, processes: int = 2, restarts: int = 0
                    ) -> dict[str, str | int]:
    """Runs main(*arguments) on `processes` processes. What they print is kept in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    agent = os.fork()
    if agent == 0:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        code = 1
        try:
            config, _, _ = config_from_args(parse_args([
                "--nproc-per-node", str(processes), "--max-restarts", str(restarts), "--rdzv-backend", "c10d", "--rdzv-endpoint",
                "localhost:0", "--rdzv-id", folder.name, __file__]))
            config.start_method = "fork"
            elastic_launch(config, main)(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(agent, 0)[1])
    return {"code": code, **{name: (folder / name).read_text() for name in ("stdout", "stderr")}}
