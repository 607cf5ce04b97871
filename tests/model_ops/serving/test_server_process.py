"""A server for as long as a block runs: it waits, explains failures, and leaves no process behind, however its owner ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import urllib3
from stand_in_server import living, stand_in, started

from model_ops.evaluation.served_forms import tail_quantile, tail_s
from model_ops.jobs import ModelError, Stopped
from model_ops.machine.precision import Speeds
from model_ops.serving import command as program
from model_ops.serving import cpu_dtype, server_guard
from model_ops.serving.command import program_of, server_environment
from model_ops.serving.cpu_dtype import dtype_words
from model_ops.serving.server_process import NotRunnable, ServerFailed, cause_in, running_server

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("server process")]

HOLD = """
import sys, time
from pathlib import Path
from model_ops.serving.server_process import running_server
with running_server([sys.argv[1], "-m", "vllm"], log=Path(sys.argv[2]), start_s=60):
    print("up", flush=True)
    time.sleep(600)
"""


def run(folder, start_s=30.0, **more):
    return running_server([folder / "python", "-m", "vllm"], log=folder / "server.log", start_s=start_s, **more)


def test_the_block_begins_when_the_server_can_be_asked_and_the_server_ends_with_it(tmp_path):
    stand_in(tmp_path, late_s=1)
    with run(tmp_path) as server:
        assert urllib3.request("GET", f"{server.url}/v1/models").status == 200
        assert not server.ends_within(0.01) and server.started_s >= 1 and 1 < server.memory_mb() < 1_000
        assert len(living(tmp_path)) == 2
    assert living(tmp_path) == [] and "the server starts" in (tmp_path / "server.log").read_text()
    assert started(tmp_path)[0][2:5] == ["--host", "127.0.0.1", "--port"]


def test_a_block_that_fails_ends_the_server_too(tmp_path):
    stand_in(tmp_path)
    with pytest.raises(KeyError), run(tmp_path):
        raise KeyError
    assert living(tmp_path) == []


def test_a_server_that_ends_is_explained_by_its_cause_and_its_engine_is_ended(tmp_path):
    stand_in(
        tmp_path,
        exits="(EngineCore pid=7) ERROR 11-25 [core.py:1] ValueError: head size 7 is not supported\n"
        "(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above.",
    )
    (tmp_path / "server.log").write_text("OSError: of an earlier server\n")
    with pytest.raises(ServerFailed) as failed, run(tmp_path):
        pass
    assert str(failed.value) == "it ended with exit code 1 before it could be asked: ValueError: head size 7 is not supported"
    assert living(tmp_path) == []


def test_a_server_that_cannot_be_asked_in_time_is_ended(tmp_path):
    stand_in(tmp_path, late_s=600)
    with pytest.raises(ServerFailed, match=r"it could not be asked after 1 s: the server starts"), run(tmp_path, 1.0):
        pass
    assert living(tmp_path) == []


def test_a_request_to_stop_ends_a_server_that_starts(tmp_path):
    def check():
        if started(tmp_path):
            raise Stopped

    stand_in(tmp_path, late_s=600)
    with pytest.raises(Stopped), run(tmp_path, check=check):
        pass
    assert living(tmp_path) == []


def test_what_is_no_program_is_refused(tmp_path):
    (tmp_path / "python").write_text("text")
    with pytest.raises(NotRunnable, match=r"python cannot be run \(Permission denied\)"), run(tmp_path):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_owner_leaves_no_server(tmp_path, number):
    """Python's own handling of SIGTERM ends a process as suddenly as SIGKILL does."""
    stand_in(tmp_path)
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "python", tmp_path / "server.log"], text=True, stdout=subprocess.PIPE
    )
    assert owner.stdout.readline() == "up\n" and len(living(tmp_path)) == 2
    os.kill(owner.pid, number)
    owner.wait()
    owner.stdout.close()
    until = time.monotonic() + 20
    while living(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert living(tmp_path) == []


def test_a_message_of_several_lines_is_quoted_to_its_end(tmp_path):
    log = tmp_path / "server.log"
    log.write_text(
        "(APIServer pid=6)     return f(x)\n(APIServer pid=6) pydantic.ValidationError: 1 error for ModelConfig\n"
        "(APIServer pid=6)   Value error, max_model_len is too large\n(APIServer pid=6) done\n"
    )
    assert cause_in(log) == "pydantic.ValidationError: 1 error for ModelConfig Value error, max_model_len is too large"


def test_the_line_that_is_quoted_is_short_and_printable(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("\x1b[31m" + "x" * 1_000 + "\n\n")
    assert cause_in(log) == (" [31m" + "x" * 1_000).strip()[:300]
    log.write_text("")
    assert cause_in(log) == ""


def test_shared_memory_of_a_server_goes_with_it(tmp_path):
    """As vLLM has it: a server with shared memory and a process that removes it, which SIGTERM does not end."""
    made = tmp_path / "names"
    script = tmp_path / "server.py"
    script.write_text(f"""
import signal, sys, time
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=1 << 16)
open({str(made)!r}, "w").write(memory.name)
signal.signal(signal.SIGTERM, lambda *_: __import__("os")._exit(0))  # it ends without tidying up itself
time.sleep(60)
""")
    server = subprocess.Popen([sys.executable, script], start_new_session=True)
    while not made.exists() or not made.read_text():
        time.sleep(0.02)
    segment = Path("/dev/shm") / made.read_text().lstrip("/")
    assert segment.exists()
    server_guard.end_group(server)
    assert not segment.exists()


SLOW, FAST = Speeds(float32=12.0, bfloat16=0.5), Speeds(float32=100.0, bfloat16=700.0)


@pytest.mark.parametrize(
    "kind, speeds, accelerator, given, words",
    [
        ("vllm", SLOW, False, [], ["--dtype", "float32"]),
        ("vllm", FAST, False, [], []),
        ("vllm", SLOW, True, [], []),
        ("sglang", SLOW, False, [], []),
        ("vllm", SLOW, False, ["--max-model-len", "512"], ["--dtype", "float32"]),
        ("vllm", SLOW, False, ["--dtype", "bfloat16"], []),
        ("vllm", SLOW, False, ["--dtype=auto"], []),
        ("vllm", SLOW, False, ["--mamba-cache-dtype", "float16"], ["--dtype", "float32"]),
    ],
)
def test_vllm_is_told_float32_where_the_cpu_serves_and_is_slow_in_bfloat16(
    monkeypatch, tmp_path, kind, speeds, accelerator, given, words
):
    asked = []
    monkeypatch.setattr(cpu_dtype, "cpu_speeds", lambda threads: asked.append(threads) or speeds)
    monkeypatch.setattr(cpu_dtype, "ACCELERATORS", (tmp_path if accelerator else tmp_path / "none", tmp_path / "neither"))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    (tmp_path / "config.json").write_text("{}")
    assert dtype_words(kind, tmp_path, given) == words
    assert asked in ([], [3])


@pytest.mark.parametrize(
    "config, takes",
    [
        ({}, True),
        ({"quantization_config": {"format": "int-quantized", "kv_cache_scheme": None}}, True),
        ({"quantization_config": {"format": "int-quantized", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, False),
        ({"quantization_config": {"format": "pack-quantized"}}, False),  # vLLM 0.32's kernel takes 16 bits only
        ({"quantization_config": {"quant_method": "fp8"}}, False),
        (None, False),
    ],
)
def test_kernels_that_take_no_float32_keep_the_dtype_of_the_weights(monkeypatch, tmp_path, config, takes):
    monkeypatch.setattr(cpu_dtype, "cpu_speeds", lambda threads: SLOW)
    monkeypatch.setattr(cpu_dtype, "ACCELERATORS", ())
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert dtype_words("vllm", tmp_path) == (["--dtype", "float32"] if takes else [])


def test_the_quantile_grows_with_the_requests():
    assert [round(tail_quantile(number), 3) for number in (1, 8, 10, 50, 64, 500, 10_000)] == [
        0.5,
        0.5,
        0.5,
        0.9,
        0.922,
        0.99,
        0.99,
    ]


@pytest.mark.parametrize("number", [8, 64, 200])
def test_one_slow_request_does_not_move_it_and_a_slow_tail_does(number):
    even = list(np.linspace(1.0, 1.2, number))
    once = [*even[:-1], 9.0]
    assert tail_s(once) == pytest.approx(tail_s(even), rel=0.01)
    slow = [latency * (1.5 if place % 2 else 1) for place, latency in enumerate(even)]
    assert tail_s(slow) > 1.1 * tail_s(even)


def test_of_many_requests_it_is_the_99th_percentile():
    found = np.random.default_rng(0).exponential(size=5_000)
    assert tail_s(list(found)) == pytest.approx(np.percentile(found, 99))
    with pytest.raises(ValueError, match="no tail"):
        tail_s([])


def test_a_named_interpreter_is_asked_whether_it_has_the_server(tmp_path):
    python = stand_in(tmp_path)
    assert program_of("vllm", python) == [python, "-m", "vllm.entrypoints.cli.main", "serve"]
    assert program_of("sglang", python) == [python, "-m", "sglang.launch_server"]
    for other in ("/bin/false", str(tmp_path / "none"), str(tmp_path)):
        with pytest.raises(ModelError, match="runs no Python that has vllm: name the interpreter"):
            program_of("vllm", other)


def test_without_one_this_environment_and_then_the_command_on_path_are_used(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(program.importlib.util, "find_spec", lambda name: None)
    for server, where in (("vllm", "this environment and not on PATH: name"), ("sglang", "this environment: name")):
        with pytest.raises(ModelError, match=f"evaluation.server: {server} is not installed in {where}"):
            program_of(server, None)
    (tmp_path / "vllm").write_text("#!/bin/sh\n")
    (tmp_path / "vllm").chmod(0o755)
    assert program_of("vllm", None) == [str(tmp_path / "vllm"), "serve"]
    monkeypatch.setattr(program.importlib.util, "find_spec", lambda name: name)
    assert program_of("vllm", None) == [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]


def test_a_server_gets_neither_this_projects_path_nor_a_key_to_ask_for(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/project")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    found = server_environment()
    assert not {"PYTHONPATH", "VLLM_API_KEY"} & set(found) and found["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert found["HF_HUB_OFFLINE"] == "1"


def test_a_server_that_a_process_of_a_mesh_starts_is_no_process_of_the_mesh(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "GROUP_WORLD_SIZE", "ROLE_ARN"):
        monkeypatch.setenv(name, "1")
    assert server_environment()["MASTER_ADDR"] == "1", "another tool's"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    found = server_environment()
    assert found["ROLE_ARN"] == "1"
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "GROUP_WORLD_SIZE"} & found.keys()
    assert not [name for name in found if name.startswith("TORCHELASTIC")]
