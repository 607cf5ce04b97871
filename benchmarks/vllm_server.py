"""A real vLLM server for as long as a block runs, in the environment of `benchmarks.vllm_environment`.

    with vllm_server(python, "DIR", "--max-model-len", "1024", folder=FOLDER) as server:     # vllm serve DIR ...
        server.answer([1, 17, 9], temperature=0, max_tokens=32)                              # model_ops.completions.served

`folder` is where the server is started: a drafter's own config names its target by a path from there.
Statistics are on and prefix caching is off, so that a prompt costs the same however often it was asked.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model_ops.completions.served import ServedModel
from model_ops.jobs import ModelError
from model_ops.serving.cpu_dtype import dtype_words
from model_ops.serving.server_process import NotRunnable, ServerFailed, running_server

STARTS_WITHIN_S = 900
THREADS = 2


@contextmanager
def vllm_server(python: Path, model: str | Path, *words: str, folder: Path, threads: int = THREADS) -> Iterator[ServedModel]:
    """Raises SystemExit with the end of the server's log where it does not come up or fails; ends it in any case."""
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": "",
    }
    command = [
        python,
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        model,
        "--enforce-eager",
        "--no-enable-prefix-caching",
        "--seed",
        "0",
        *words,
        *dtype_words("vllm", folder / model, words),
    ]
    with tempfile.NamedTemporaryFile(prefix="vllm-", suffix=".log") as log:
        try:
            with (
                running_server(
                    command, log=Path(log.name), start_s=STARTS_WITHIN_S, folder=folder, environment=environment
                ) as server,
                ServedModel(server.url, through_proxy=False) as client,
            ):
                yield client
        except (ModelError, NotRunnable, ServerFailed) as error:
            raise SystemExit(f"vLLM: {error}\n{_end_of(Path(log.name))}") from error


def _end_of(log: Path) -> str:
    """What a server said last: the cause comes before the traces of what failed with it."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-80:])
