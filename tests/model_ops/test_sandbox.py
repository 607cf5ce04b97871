"""Programs of unit tests: what they cannot do, and that what they can do passes."""

import os
import subprocess
import sys
import time

import pytest

from model_ops.tasks.unit_tests import run_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a subprocess is locked down on Linux only")

HOSTILE = {
    "fails": "assert False",
    "does not compile": "def (",
    "leaves early": "import os; os._exit(0)",
    "exits": "raise SystemExit(0)",
    "forks": "import os; os.fork()",
    "opens a socket": "import socket; socket.socket()",
    "opens a socket without Python": "import ctypes\nassert ctypes.CDLL(None).socket(2, 1, 0) >= 0",
    "starts a program": "import subprocess; subprocess.run(['true'], check=True)",
    "takes memory": "held = bytearray(2**30)",
    "writes a large file": "open('x', 'wb').write(b'0' * (64 << 20))",
    "says that it passed": (
        "import os\nfor place in range(3, 64):\n    try: os.write(place, b'passed\\n')\n    except OSError: pass\nos._exit(0)"
    ),
    "repeats what it reads": "import os\nword = os.read(0, 64)\nos.write(3, word or b'')\nos._exit(0)",
    "signals its parent": "import os; os.kill(os.getppid(), 9)",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_program_that_misbehaves_does_not_pass(source):
    outcome = run_program(source, seconds=5, memory_mb=256)
    assert not outcome.passed and "seccomp" in outcome.isolation


def test_a_program_sees_no_secret_and_writes_only_its_own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("A_SECRET", "sesame")
    outside = tmp_path / "outside"
    source = (
        f"import os, threading, pathlib\nassert 'A_SECRET' not in os.environ\nopen('own', 'w').write('x')\n"
        f"worker = threading.Thread(target=lambda: None); worker.start(); worker.join()\n"
        f"try:\n    open({str(outside)!r}, 'w')\nexcept OSError:\n    pass\n"
    )
    outcome = run_program(source, seconds=5, memory_mb=256)
    assert outcome.passed
    if "landlock" in outcome.isolation:
        assert not outside.exists()


def test_a_loop_and_a_fork_bomb_end_in_time():
    began = time.monotonic()
    assert not run_program("while True: pass", seconds=0.5, memory_mb=256).passed
    assert not run_program(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", seconds=0.5, memory_mb=256
    ).passed
    assert time.monotonic() - began < 12
    left = subprocess.run(["ps", "-o", "args", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False).stdout
    assert "sandbox_child" not in left
