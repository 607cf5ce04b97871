"""A script in a fork of this process: torch and transformers, which take seconds of CPU time to import, are there already.

    found = forked_script(SCRIPT, [folder, "2"], printed)          # what it printed, read as JSON

It starts processes of its own (benchmarks.parallel.on_processes, forked_torchrun) and leaves nothing behind in this process.
"""

import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import benchmarks.parallel  # noqa: F401  before the fork, with all that it imports


def forked_script(script: str | Path, arguments: Sequence[object], folder: Path) -> Any:
    """Runs a script's text or file with arguments; what it printed is kept in `folder`. Fails with what it wrote to stderr."""
    folder.mkdir(parents=True, exist_ok=True)
    name, text = (str(script), script.read_text()) if isinstance(script, Path) else ("SCRIPT", script)
    child = os.fork()
    if child == 0:
        for number, place in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        code = 1
        try:
            sys.argv = [name, *map(str, arguments)]
            exec(compile(text, name, "exec"), {"__name__": "__main__", "__file__": name})
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # a fork must not go on as its parent
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, (folder / "stderr").read_text()[-3000:]
    printed = (folder / "stdout").read_text()
    return json.loads(printed) if printed else None
