"""Which program starts a server, and what it inherits."""

import sys

import pytest
from stand_in_server import stand_in

from model_ops.jobs.job import ModelError
from model_ops.serving import command as program
from model_ops.serving.command import program_of, server_environment


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
