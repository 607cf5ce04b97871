"""A vLLM environment, what the toy graph published, and its answers without any drafter.

The environment is kept between runs (benchmarks/vllm_environment.py). Where it has to be made, that takes minutes of waiting for
a package index: it begins when the tests do, and the tests that need it come last.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.vllm_environment import vllm_python
from tests.serving.served_in_vllm import Parts, served

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: HERE in item.path.parents)


def pytest_collection_finish(session):
    if not session.config.option.collectonly and any(HERE in item.path.parents for item in session.items):
        subprocess.Popen([sys.executable, "-m", "benchmarks.vllm_environment"], cwd=HERE.parents[1], start_new_session=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


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
