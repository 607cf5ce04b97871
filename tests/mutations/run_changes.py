"""Runs fast tests on a copy of the project, once for each change: started by test_changes.py, prints one JSON line a run.

    python -P run_changes.py COPY        # stdin: JSON lines {"name", "file", "before", "after", "tests"}; without a file: no
    change

Libraries are imported once, the project's own modules in a fork for each run: a run takes seconds."""

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

import pytest

LIBRARIES = (
    "torch",
    "torch._dynamo",
    "transformers",
    "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama",
    "compressed_tensors",
    "duckdb",
    "deltalake",
    "polars",
    "pyarrow.parquet",
    "pydantic",
    "hypothesis",
)
FAST = "not slow and not thorough and not gpu"


def outcome(tests: list[str]) -> tuple[int, str]:
    """(pytest's exit code, the end of what it printed) of these files' fast tests, until the first one fails."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        child = os.fork()
        if not child:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            code = 3
            try:
                code = int(
                    pytest.main(
                        ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", FAST, *(f"tests/{name}" for name in tests)]
                    )
                )
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return code, said.read()[-3000:]


def main() -> None:
    copy = Path(sys.argv[1])
    for name in LIBRARIES:
        importlib.import_module(name)
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    sys.dont_write_bytecode = True  # a changed file may have the size and the second of the one before
    for line in sys.stdin:
        change = json.loads(line)
        file = copy / change["file"] if change["file"] else None
        whole = file.read_text(encoding="utf-8") if file else ""
        if file:
            file.write_text(whole.replace(change["before"], change["after"]), encoding="utf-8")
        try:
            code, said = outcome(change["tests"])
        finally:
            if file:
                file.write_text(whole, encoding="utf-8")
        print(json.dumps({"name": change["name"], "code": code, "said": said}), flush=True)


if __name__ == "__main__":
    main()
