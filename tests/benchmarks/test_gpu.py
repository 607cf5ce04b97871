"""benchmarks.gpu without a device: rows are on the disk as soon as they are measured, a killed run goes on, a deadline holds,
what is missing becomes a row, parts run as toys."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_wheels
from tests.command import PROJECT
from tests.thorough_cases import thorough_except

DRIVER = """
import os, signal, sys, time
from pathlib import Path
from benchmarks import gpu

gpu.PARTS = {name: gpu.Part("", 600) for name in ("one", "two", "three")}

def run(name, seconds, take):
    take({"value": name})
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    return "no memory" if name == "two" and sys.argv[2] else None

made_with = {"device": sys.argv[3], "torch": "2.13"}
found, again = gpu.Findings(Path(sys.argv[1])), "again" in sys.argv
gpu.run_parts(list(gpu.PARTS), found, made_with, time.monotonic() + 600, 1.0, run, again=again)
"""


def driven(folder, killed_in="", device="H100", *more):
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(folder), killed_in, device, *more], cwd=PROJECT, text=True, capture_output=True
    )
    lines = [line for line in (folder / "rows.jsonl").read_text().splitlines() if line.endswith("}")]
    return done.returncode, [json.loads(line) for line in lines], done.stdout


def test_a_killed_run_keeps_its_rows_and_continues_with_parts_that_did_not_end(tmp_path):
    folder = tmp_path / "out"
    code, rows, _ = driven(folder, "three")
    assert code == -signal.SIGKILL
    assert [(row["part"], row.get("value")) for row in rows] == [
        ("one", "one"), ("one", None), ("two", "two"), ("two", None), ("three", "three"),
    ]  # fmt: skip
    assert rows[1]["ended"] and rows[3]["error"] == "no memory"
    with (folder / "rows.jsonl").open("a") as file:
        file.write('{"part": "cut sho')  # the line at which a machine went away
        file.write("\n")
    code, _, said = driven(folder)
    assert code == 0 and "one: ended before" in said and "two: ended" not in said and "three: ended" not in said
    ended = json.loads((folder / "gpu.json").read_text())["figures"]["rows"]
    assert [row["part"] for row in ended if row.get("ended")] == ["one", "two", "three"]
    assert "ended before" not in driven(folder, "", "H100", "again")[2], "--again measures every part"
    assert "ended before" not in driven(folder, "", "A100")[2], "results of another device are not this device's"


def test_after_the_deadline_parts_are_left_out_with_a_row_each(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "PARTS", {name: gpu.Part("", 60) for name in ("one", "two")})
    given = []

    def run(name, seconds, take):
        given.append(seconds)
        time.sleep(0.2)

    found = gpu.Findings(tmp_path)
    gpu.run_parts(["one", "two"], found, {}, time.monotonic() + gpu.RESERVE_SECONDS + 8.1, 1.0, run)
    assert 7.5 < given[0] < 8.2 and len(given) == 1, "a part gets what is left of the deadline"
    assert found.rows[-1]["part"] == "two" and "of the deadline were left" in found.rows[-1]["left_out"]
    gpu.run_parts(["two", "one"], found, {}, time.monotonic() + 300, 0.5, run, {"one": "no device"})
    assert given[-1] == 30.0, "half the time, half of each part's share"
    assert found.rows[-1]["left_out"] == "no device" and len(given) == 2


def test_rows_come_as_they_are_printed_and_a_late_part_is_stopped_with_its_children(tmp_path):
    noted, rows = tmp_path / "child", []
    hangs = (
        "import json, subprocess, time; print(json.dumps({'first': 1}), flush=True); print('a library says so', flush=True)\n"
        f"c = subprocess.Popen(['sleep', '60']); open({str(noted)!r}, 'w').write(str(c.pid)); time.sleep(60)"
    )
    with (tmp_path / "log").open("a") as log:
        error = gpu.in_a_process([sys.executable, "-c", hangs], 3, rows.append, log)
        assert error == "not finished after 3 s; rows before are kept" and rows == [{"first": 1}]
        ended = time.monotonic() + 5
        while (alive := running(int(noted.read_text()))) and time.monotonic() < ended:
            time.sleep(0.05)
        assert not alive
        assert (
            gpu.in_a_process([sys.executable, "-c", "raise MemoryError('CUDA')"], 20, rows.append, log) == "MemoryError: CUDA"
        )
        assert gpu.in_a_process([sys.executable, "-c", "pass"], 20, rows.append, log) is None


def running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_part_ends_with_the_process_that_began_it():
    watched, held = os.pipe()
    code = f"import time; from benchmarks import gpu; gpu._end_with_the_other_side_of({watched}); time.sleep(60)"
    part = subprocess.Popen([sys.executable, "-c", code], pass_fds=[watched], cwd=PROJECT)
    os.close(watched)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            part.wait(0.5)
        os.close(held)
        assert part.wait(20) == 1
    finally:
        part.kill()


@pytest.mark.parametrize(
    "problem", ["torch finds no CUDA device here", "The NVIDIA driver on your system is too old (found version 12020)"]
)
def test_without_a_device_every_part_is_a_row_with_the_reason(tmp_path, monkeypatch, capsys, problem):
    monkeypatch.setattr(gpu, "device_name", lambda: (None, problem))
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path)])
    assert gpu.main() == 1 and "failed or left out: attention, ceilings" in capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["part"] for row in rows] == ["environment", *gpu.PARTS] and rows[0]["torch"]
    assert {row["left_out"] for row in rows[1:]} == {f"{problem}; --rehearse runs toys on the CPU"}


def test_a_missing_package_leaves_out_the_parts_that_import_it(monkeypatch):
    monkeypatch.setattr(gpu, "NEEDED", (("json", "json"), ("no_such_module", "pytest")))
    assert gpu.missing_packages() == ["pytest"]
    remedy = " missing here: fetch its wheel with python -m benchmarks.gpu_wheels DIR, and carry it: --wheels DIR"
    assert gpu.left_out(["attention", "tests"], ["pytest"], None) == {"tests": f"pytest{remedy}"}
    assert gpu.left_out(["lora"], ["numba", "pytest"], None) == {"lora": f"numba{remedy}"}
    assert gpu.left_out(["lora", "tests"], [], None) == {}


def test_the_wheels_of_missing_packages_are_unpacked_for_this_python_only(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "NEEDED", (("json", "json"), ("no_such_module", "no-such"), ("other_module", "other")))
    mine, wheels = f"cp{sys.version_info.major}{sys.version_info.minor}", tmp_path / "wheels"
    wheels.mkdir()
    for name in (f"no_such-1-{mine}-{mine}-manylinux_2_17_x86_64", "other-2-py3-none-any", "json-9-py3-none-any",
                 "no_such-1-cp38-cp38-manylinux_2_17_x86_64"):  # fmt: skip
        with zipfile.ZipFile(wheels / f"{name}.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", "")
    site = gpu.unpacked(wheels, tmp_path / "site")
    assert sorted(path.name[:5] for path in site.iterdir()) == ["no_su", "other"]
    assert not (site / "no_such-1-cp38-cp38-manylinux_2_17_x86_64.py").exists()
    assert gpu.unpacked(tmp_path / "none", tmp_path / "nothing") is None


def test_the_wheels_to_fetch_are_pinned_and_files_with_gpu_tests_are_all_named():
    fetched = gpu_wheels.pinned([*gpu_wheels.PACKAGES, *(package for _, package in gpu.NEEDED)])
    assert all("==" in package for package in fetched), "each has its version in constraints.txt"
    marked = {
        str(path.relative_to(PROJECT))
        for path in (PROJECT / "tests").rglob("test_*.py")
        if "mark.gpu" in path.read_text() and path.parent.name != "benchmarks"
    }
    assert marked == set(gpu.GPU_TESTS)


@pytest.mark.parametrize(
    "part", thorough_except(["ceilings", "int8-fp8"], ["ceilings", "attention", "eagle3", "int8-fp8", "evaluation", "decoding"])
)
def test_parts_run_as_toys(part):
    rows = list(gpu.measure(part))
    assert rows and not any("error" in row for row in rows) and json.loads(json.dumps(rows)) == rows
    if part == "attention":
        assert all(row["relative_difference"] == 0 and row["kernel"] is False for row in rows)  # one path on a CPU
    elif part == "int8-fp8":
        assert [row["weights"] for row in rows] == ["bfloat16", "w8a8", "fp8"]
        assert all(0 < row["relative_difference_of_logits"] < 0.1 for row in rows[1:])
    elif part == "decoding":
        assert [row.get("drafter") for row in rows] == [None, "eagle3"]
    elif part == "ceilings":
        assert all(row["tflops"] > 0 for row in rows[:-1]) and rows[-1]["copy_tb_s"] > 0
    else:
        assert any(row.get("tokens_per_second", 0) > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("part", thorough_except(["deterministic"], ["deterministic", "lora", "lora-32k", "full-4k"]))
def test_longer_parts_run_as_toys(part):
    rows = list(gpu.measure(part))
    assert not any("error" in row for row in rows) and all(row.get("same_bits", True) for row in rows)
    if part == "lora":
        profile = next(row["profile"] for row in rows if "profile" in row)
        assert 0 < len(profile) <= 20 and profile[0]["share"] >= profile[-1]["share"]
        assert [row["micro_batch_tokens"] for row in rows if "profile" not in row] == [128, 256]


@pytest.mark.thorough
def test_the_whole_of_it_ends_within_its_deadline_with_rows_and_a_file(tmp_path):
    began_s = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--seconds",
        "60",
        "--out",
        str(tmp_path),
        "--parts",
        "ceilings,attention,tests",
        "--rehearse",
    ]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert time.monotonic() - began_s < 75, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert gpu_wheels.missing_in(tmp_path / "rows.jsonl") == rows[0]["missing"] == []
    assert rows[0]["part"] == "environment" and rows[0]["rehearsal"] and rows[0]["device"] == "cpu"
    assert {"ceilings", "attention", "tests"} <= {row["part"] for row in rows}
    assert json.loads((tmp_path / "gpu.json").read_text())["figures"]["rows"] == rows
