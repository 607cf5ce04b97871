"""A real vLLM server for as long as a block runs, in the environment of `benchmarks.vllm_environment`.

    with vllm_server(python, "DIR", "--max-model-len", "1024", folder=FOLDER) as server:     # vllm serve DIR ...
        server.answer([1, 17, 9], temperature=0, max_tokens=32)                              # model_ops.decoding.served

`folder` is where the server is started: a drafter's own config names its target by a path from there.
Statistics are on and prefix caching is off, so that a prompt costs the same however often it was asked.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import urllib3

from model_ops.decoding.served import ServedModel
from model_ops.errors import ModelError

STARTS_WITHIN_S = 900
THREADS = 2


@contextmanager
def vllm_server(python: Path, model: str | Path, *words: str, folder: Path, threads: int = THREADS) -> Iterator[ServedModel]:
    """Raises SystemExit with the end of the server's log where it does not come up or fails; ends it in any case."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads),
                   "VLLM_LOGGING_LEVEL": "INFO", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": ""}
    command = [python, "-m", "vllm.entrypoints.cli.main", "serve", model, "--host", "127.0.0.1", "--port", str(port),
               "--enforce-eager", "--no-enable-prefix-caching", "--seed", "0", *words]
    with tempfile.NamedTemporaryFile(prefix="vllm-", suffix=".log") as log:
        process = subprocess.Popen([str(word) for word in command], cwd=folder, stdout=log, stderr=subprocess.STDOUT,
                                   env=environment, start_new_session=True)
        try:
            _wait(process, port, Path(log.name))
            with ServedModel(f"http://127.0.0.1:{port}") as server:
                yield server
        except ModelError as error:
            raise SystemExit(f"{error}\n{_end_of(Path(log.name))}") from error
        finally:
            _end(process)


def _wait(process: subprocess.Popen, port: int, log: Path) -> None:
    until = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        if _is_up(port):
            return
        time.sleep(1)
    raise SystemExit(f"vLLM did not start (exit code {process.poll()}):\n{_end_of(log)}")


def _is_up(port: int) -> bool:
    """Whether the server says that it can be asked; one that nobody hears yet is not up."""
    try:
        response = urllib3.request("GET", f"http://127.0.0.1:{port}/health", retries=False, timeout=5)
    except urllib3.exceptions.HTTPError:
        return False
    return response.status == 200


def _end_of(log: Path) -> str:
    """What a server said last: the cause comes before the traces of what failed with it."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-80:])


def _end(process: subprocess.Popen) -> None:
    """The server and the engine it started, which share a process group of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
