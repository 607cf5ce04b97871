"""A vLLM environment, what the toy graph published, and its answers without any drafter."""

import subprocess

import pytest

from benchmarks.vllm_environment import vllm_python
from tests.serving.served_in_vllm import Parts, served


@pytest.fixture(scope="session")
def python():
    try:
        return vllm_python()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no vLLM could be installed here: {' '.join(map(str, error.cmd))[:200]}")


@pytest.fixture(scope="session")
def parts(toy):
    return Parts.of(toy)


@pytest.fixture(scope="session")
def greedy_alone(python, parts, tmp_path_factory):
    return served(python, tmp_path_factory.mktemp("alone"), parts.prompts, [0], parts.target)[0]
