"""Foreign code in the sandbox: what it cannot do, how tests see an answer, and machines that cannot lock a process down."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.sandbox import CHEATS, EVIDENCE, Outside, attempt, left_processes
from model_ops.jobs import ModelError
from model_ops.tasks import FunctionFailure, call_function, isolation, unit_tests
from model_ops.tasks.unit_tests import run_tests

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process is locked down on Linux only")

NASTIEST = (
    "reads a secret file", "truncates a file outside", "changes modes outside", "UDP to this machine", "abstract unix socket",
    "becomes a daemon", "signals by the owner of a pipe", "32-bit system calls", "finds the tests in memory",
    "reads all file descriptors", "equals everything", "overwrites the comparison", "reports by every descriptor",
    "asks the tests to evaluate", "leaves when it is asked", "many small files", "many threads", "busy loop",
    "reads the system's files", "lists the system's libraries", "gives names that nobody asked for",
)  # fmt: skip


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGIO)}
    yield Outside(tmp_path_factory.mktemp("outside"))
    for number, handler in handlers.items():
        signal.signal(number, handler)
    del os.environ["MILLRACE_SANDBOX_SECRET"]


@pytest.mark.parametrize("name", NASTIEST)
def test_a_hostile_program_neither_gets_out_nor_passes_nor_hangs(name, outside):
    found = attempt(name, {**EVIDENCE, **CHEATS}[name], outside)
    assert (found["escaped"], found["hung"]) == (False, False)


def passes(answer, test, **given):
    return run_tests(answer, test, seconds=20, memory_mb=512, **given).passed


POINT = (
    "class P:\n def __init__(self, x): self.x = x\n def __eq__(self, o): return self.x == o.x\n def __len__(self): return 7\n"
)


@pytest.mark.parametrize(
    ("answer", "test"),
    [
        ("x = 4", "assert x == 4"),
        ("class Solution:\n def two(self, a, k): return [a[0], k]", "s = Solution()\nassert s.two([1, 2], 3) == [1, 3]"),
        ("def turn(m): m.reverse()", "m = [1, 2, 3]\nturn(m)\nassert m == [3, 2, 1]"),
        (POINT, "p = P(1)\nassert p == P(1) and p != P(2) and len(p) == 7\np.x = 9\nassert p.x == 9 and isinstance(p, P)"),
        (
            "class Poor(Exception): pass\ndef f(x): raise Poor('no') if x else ValueError('zero')",
            "for x, kind, text in ((1, Poor, 'no'), (0, ValueError, 'zero')):\n try: f(x)\n except kind as e: assert str(e) == text\n else: assert 0",
        ),
        ("def count(n):\n for i in range(n): yield i", "assert list(count(3)) == [0, 1, 2] and next(count(1)) == 0"),
        (
            "async def f(x):\n import asyncio\n await asyncio.sleep(0)\n return x",
            "import asyncio\nassert asyncio.run(f(3)) == 3",
        ),
        ("def twice(f, x): return f(f(x))", "assert twice(lambda x: x + 1, 3) == 5"),
        (
            "def f(): print('hi')",
            "import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b): f()\nassert b.getvalue() == 'hi\\n'",
        ),
        (
            "def f(x): return x",
            "v = (1, [2.5, {3}], {'a': (None, True)}, b'x', 1j, 2 ** 9999, float('inf'), range(3))\nassert f(v) == v",
        ),
        (
            "import datetime, decimal\ndef f(): return datetime.date(2020, 1, 2), decimal.Decimal('1.10')",
            "import datetime, decimal\nassert f() == (datetime.date(2020, 1, 2), decimal.Decimal('1.1'))",
        ),
        (
            "class N:\n def __init__(s, v, n=None): s.v, s.n = v, n\ndef turn(h):\n p = None\n while h: h.n, p, h = p, h, h.n\n return p",
            "a = N(1, N(2))\nr = turn(a)\nassert r.v == 2 and r.n is a and a.n is None",
        ),
        ("def f():\n import threading, tempfile\n return bool(tempfile.TemporaryFile())", "assert f()"),
    ],
)
def test_tests_in_another_process_see_an_answer_as_if_it_were_here(answer, test):
    assert passes(answer, test)


def test_an_answers_names_replace_none_that_tests_trust():
    lie = "class math:\n isclose = lambda *a: True\ndef abs(x): return 0\ndef right(x): return True\ndef f(x): return 9"
    prepared = "def right(x): return x == 3\ndef f(x): pass"
    for test in ("assert math.isclose(f(1), 3)", "assert abs(f(1) - 3) < 1e-6", "assert right(f(1))"):
        assert not passes(lie, test, prepared=prepared, entry_point="f")
        assert passes("def f(x): return 3", test, prepared=prepared, entry_point="f")


def test_threads_share_the_server_and_a_killed_one_is_replaced():
    assert isolation().endswith("seccomp")
    unit_tests._SERVER._process.kill()
    found = []
    workers = [threading.Thread(target=lambda: found.append(passes("x = 1", "assert x == 1"))) for _ in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert found == [True] * 4


def test_a_function_returns_json_or_fails_with_a_fixed_text():
    source = "def f(x):\n    if x == 1: raise KeyError('secret')\n    if x == 2: 1 / 0\n    return {'x': x}"
    assert call_function(source, "f", [3], seconds=5, memory_mb=512) == {"x": 3}
    for x, said in ((1, "raised KeyError in line 2"), (2, "raised ZeroDivisionError in line 3")):
        with pytest.raises(FunctionFailure, match=f"^{said}$"):
            call_function(source, "f", [x], seconds=5, memory_mb=512)
    with pytest.raises(FunctionFailure, match=r"took longer than 0\.3 s"):
        call_function("while True: pass", "f", [], seconds=0.3, memory_mb=512)


@pytest.mark.parametrize("missing", ["ABI = landlock_abi()", "return LIBC.prctl(22, 2, header, 0, 0) == 0"])
def test_a_machine_without_landlock_or_seccomp_runs_nothing(missing, tmp_path, monkeypatch):
    source = unit_tests.CHILD.read_text()
    assert missing in source
    (tmp_path / "child.py").write_text(source.replace(missing, "ABI = 0" if "ABI" in missing else "return False"))
    for name in ("two_sides.py", "sandbox_root.py"):
        (tmp_path / name).write_text(unit_tests.CHILD.with_name(name).read_text())
    monkeypatch.setattr(unit_tests, "CHILD", tmp_path / "child.py")
    monkeypatch.setattr(unit_tests, "_SERVER", server := unit_tests._Server())
    marker = tmp_path / "ran"
    tmp_path.chmod(0o777)
    try:
        with pytest.raises(ModelError, match="cannot lock a process down"):
            run_tests(f"open({str(marker)!r}, 'w')", "pass", seconds=5, memory_mb=256)
    finally:
        server.end()
    assert not marker.exists()


FILLS = """
import os, pathlib
def fill(nameless):
    total, files = 0, []
    for n in range(600):
        try:
            files.append(open(str(n), "wb", 0))
            if nameless: os.unlink(str(n))
            for _ in range(16): total += files[-1].write(bytes(1 << 19))
        except OSError: pass
        if not nameless: files.clear()
    return total
def several():
    for name in "abc": open(name, "w").write(name)
    return sorted(os.listdir("."))
def loads():
    names = [path.name.split(".")[0] for path in pathlib.Path(os.__file__).parent.glob("lib-dynload/*.so")]
    for name in names: __import__(name)
    return len(names) > 20
def left(): return os.listdir(".")
"""


@pytest.fixture(params=["own root", "no mounts"])
def server(request, tmp_path, monkeypatch):
    """A server of each way to bound a job's files."""
    for name in ("sandbox_child.py", "two_sides.py", "sandbox_root.py"):
        source = unit_tests.CHILD.with_name(name).read_text()
        assert name != "sandbox_root.py" or source.count("trial = os.fork()") == 1
        (tmp_path / name).write_text(
            source if request.param == "own root" else source.replace("trial = os.fork()", "return False")
        )
    monkeypatch.setattr(unit_tests, "CHILD", tmp_path / "sandbox_child.py")
    monkeypatch.setattr(unit_tests, "_SERVER", server := unit_tests._Server())
    if request.param == "own root" and "own root" not in run_tests("", "pass", seconds=60, memory_mb=256).isolation:
        server.end()
        pytest.skip("this machine forbids mounts")
    yield request.param
    server.end()


def call(name, *args):
    return call_function(FILLS, name, list(args), seconds=20, memory_mb=512)


def test_the_kernel_bounds_what_a_job_writes(server):
    mounts = Path("/proc/mounts").read_text()
    most = 32 << 20
    assert call("fill", False) == most, "in files with names, of which no more than fit"
    assert most // 4 <= call("fill", True) <= most, "in files without names"
    assert (call("several"), call("left"), call("loads")) == (["a", "b", "c"], [], True)
    assert Path("/proc/mounts").read_text() == mounts, "nothing is mounted outside of the sandbox"


def test_the_counted_files_of_both_processes_are_bounded_together(server):
    answer = "def make(first):\n for n in range(first, first + 200): open(str(n), 'w').close()"
    test = f"{answer}\ntry: make(0); make(200)\nexcept OSError: pass\ntry: f(200)\nexcept OSError: pass\nelse: assert 0"
    assert passes(answer.replace("make", "f"), test)


def test_what_lies_beside_python_can_neither_be_read_nor_seen(server):
    source = (
        "import os\ndef reads(p):\n try: return bool(os.listdir(p) if os.path.isdir(p) else open(p).read())\n except OSError: return False\n"
        "def f(paths): return [[reads(p), os.path.exists(p)] for p in paths]"
    )
    outside = ["/etc/passwd", "/usr/lib", "/proc", f"/proc/{os.getpid()}", str(Path(__file__))]
    found = call_function(source, "f", [[*outside, os.__file__]], seconds=20, memory_mb=512)
    assert [reads for reads, _ in found] == [*[False] * len(outside), True]
    if server == "own root":
        assert [exists for _, exists in found] == [False, Path("/usr/lib").is_dir(), False, False, False, True]


def test_a_job_that_is_left_ends_with_the_socket_of_its_owner(monkeypatch):
    began = time.monotonic()
    with monkeypatch.context() as changed, pytest.raises(ModelError, match="gave no reply, twice"):
        changed.setattr(unit_tests, "SPARE_SECONDS", -58)
        changed.setattr(unit_tests, "TRIES", 1)
        run_tests("while True: pass", "f()", seconds=60, memory_mb=256)
    while list(left_processes()):
        assert time.monotonic() - began < 20, "a supervisor is left"
        time.sleep(0.05)
    assert passes("x = 1", "assert x")
