"""benchmarks.gpu without a device: parts run as toys, a killed run continues, a part that hangs or fails becomes a row."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu
from tests.command import PROJECT

DRIVER = """
import os, signal, sys
from pathlib import Path
from benchmarks.gpu import run_parts

def run(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"error": "no memory"} if name == "two" and sys.argv[2] else {"value": name}

run_parts(["one", "two", "three"], Path(sys.argv[1]), sys.argv[3], run, "again" in sys.argv)
"""


def driven(path, killed_in="", device="H100", *more):
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(path), killed_in, device, *more], cwd=PROJECT, text=True, capture_output=True
    )
    return done.returncode, json.loads(path.read_text())["figures"]["rows"], done.stdout


def test_a_run_killed_between_parts_keeps_its_rows_and_continues_with_missing_and_failed_parts(tmp_path):
    results = tmp_path / "gpu.json"
    code, rows, _ = driven(results, "three")
    assert code == -signal.SIGKILL and list(rows) == ["one", "two"] and rows["two"]["error"] == "no memory"
    first = rows["one"]
    code, rows, said = driven(results)
    assert code == 0 and list(rows) == ["one", "two", "three"] and rows["two"]["value"] == "two"
    assert rows["one"] == first and "one: has a result" in said and "two: has" not in said
    assert "has a result" not in driven(results, "", "H100", "again")[2], "--again measures every part"
    assert "has a result" not in driven(results, "", "A100")[2], "results of another device are not this device's"


def test_a_part_is_stopped_with_its_children_and_an_error_is_a_row(tmp_path):
    noted = tmp_path / "child"
    hangs = f"import subprocess, time; c = subprocess.Popen(['sleep', '60']); open({str(noted)!r}, 'w').write(str(c.pid)); time.sleep(60)"
    assert gpu.in_a_process("any", 1.5, [sys.executable, "-c", hangs]) == {"error": "not finished after 1.5 s"}
    ended = time.monotonic() + 5
    while (alive := running(int(noted.read_text()))) and time.monotonic() < ended:
        time.sleep(0.05)
    assert not alive
    assert gpu.in_a_process("any", 20, [sys.executable, "-c", "raise MemoryError('CUDA')"]) == {"error": "MemoryError: CUDA"}


def running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_part_ends_with_the_process_that_began_it():
    watched, kept = os.pipe()
    part = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import time; from benchmarks import gpu; gpu._end_with_the_other_side_of({watched}); time.sleep(60)",
        ],
        pass_fds=[watched],
        cwd=PROJECT,
    )
    os.close(watched)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            part.wait(0.5)
        os.close(kept)
        assert part.wait(20) == 1
    finally:
        part.kill()


def test_without_a_device_the_target_says_so_in_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "device_name", lambda: None)
    monkeypatch.setattr(sys, "argv", ["gpu", "--cuda"])
    assert gpu.main() == 1 and capsys.readouterr() == ("", gpu.NO_DEVICE + "\n")


@pytest.mark.parametrize("part", ["attention", "eagle3", "int8-decoding", "evaluation"])
def test_parts_run_as_toys(part):
    row = gpu.measure(part)
    assert "error" not in row and json.loads(json.dumps(row)) == row
    speeds = [value for name, value in row.items() if name.startswith("tokens_per_second")]
    if part == "attention":
        assert row["relative_difference"] == 0 and row["kernel"] is False  # one path on a CPU
    elif part == "int8-decoding":
        assert 0 < row["relative_difference_of_logits"] < 0.05 and row["times_as_fast"].keys() == row["int8"].keys()
    else:
        assert speeds and all(speed > 0 for speed in speeds)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["deterministic", "compiled", "generation", "sft-lora-4096", "sft-full-4096"])
def test_longer_parts_run_as_toys(part):
    row = gpu.measure(part)
    assert "error" not in row and row.get("same_bits", True) and row.get("relative_difference_of_loss", 0) < 1e-3
