"""A vLLM environment, what the toy graph published, and its answers without any drafter.

The environment is kept between runs (benchmarks/vllm_environment.py). Where it has to be made, that takes minutes of waiting
for a package index: it begins when the tests do, and the tests that need it start when some others are over. They run in one
process: two servers at a time take longer than one after the other.
"""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.vllm_environment import vllm_python
from resources.endpoints.approvals import record_approval
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.releases.release import ReleaseRef
from tests.once import made_once
from tests.serving.served_in_vllm import Parts, served

HERE = Path(__file__).parent

os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # two servers would be bound to the same core


@pytest.hookimpl(trylast=True)  # the marks have chosen the tests by then
def pytest_collection_modifyitems(items):
    """After a quarter of the others."""
    others = [item for item in items if HERE not in item.path.parents]
    first = others[: len(others) // 4]
    items[:] = [*first, *(item for item in items if HERE in item.path.parents), *others[len(first) :]]


def pytest_collection_finish(session):
    if not session.config.option.collectonly and any(HERE in item.path.parents for item in session.items):
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.vllm_environment"],
            cwd=HERE.parents[1],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


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
    def make(folder):
        measured = served(python, folder, parts.prompts, [0], parts.target)
        (folder / "measured.pickle").write_bytes(pickle.dumps(measured[0]))

    return pickle.loads((made_once(tmp_path_factory, "greedy-alone", make) / "measured.pickle").read_bytes())


@pytest.fixture
def promoted(toy, tmp_path, monkeypatch):
    """A copy of the toy's lake without its tables, and its release, which is the champion there."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    shutil.copytree(toy.lake, tmp_path / "lake", ignore=shutil.ignore_patterns("tables", ".dagster"))
    lake = LakeLayout.open(tmp_path / "lake")
    [release] = (path.parent for path in lake.root.glob("releases/*/*/manifest.json"))
    ann = Actor("ann", "MILLRACE_USER")
    record_approval(lake, release, ann)
    Endpoint(lake, toy.workload).promote(ReleaseRef.of(release), ann)
    return lake, release
