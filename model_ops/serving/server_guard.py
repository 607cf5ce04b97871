"""Runs a server for as long as its owner lives, and then ends every process of the server. Standard library only.

    python server_guard.py COMMAND...        # standard input: a pipe whose other end the owner holds

An owner that is killed cannot end what it started. The kernel closes the owner's end of the pipe, however the owner ends, and
the guard then ends the server's process group: SIGTERM, and SIGKILL after GRACE_S. The server has a session of its own, so its
process group is its process id, which is the guard's first line on standard output. The server writes to the guard's standard
error. The guard's exit code is the server's, 128 + N for a server that signal N ended, and NOT_STARTED for a command that
cannot be run, with the reason as the only line."""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

GRACE_S, TIDIES_S = 20.0, 5.0
NOT_STARTED = 127


def main(command: list[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    except OSError as error:
        print(f"{command[0]} cannot be run ({error.strerror})", flush=True)
        return NOT_STARTED
    try:
        print(server.pid, flush=True)
        _wait(server)
    finally:
        end_group(server)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _wait(server: subprocess.Popen) -> None:
    """Until the server has ended, or the owner's end of the pipe is closed."""
    while server.poll() is None:
        if select.select([0], [], [], 0.2)[0] and not os.read(0, 1_024):
            return


def end_group(server: subprocess.Popen) -> None:
    """Ends the server and all processes that it started, and waits for the server. Python's resource tracker, one of these
    processes, ignores SIGTERM and removes the server's shared memory once the others have ended: it has TIDIES_S for that. vLLM
    passes requests through that memory."""
    for number in (signal.SIGTERM, signal.SIGKILL):  # the second also where the server has ended: its processes may live on
        with suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(timeout=GRACE_S)
        if server.returncode is not None and number == signal.SIGTERM:
            _wait_for_the_others(server.pid)


def _wait_for_the_others(group: int) -> None:
    """Until no process of the group is left, at most TIDIES_S."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < TIDIES_S:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
