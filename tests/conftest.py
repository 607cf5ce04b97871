"""What the tests share: quiet threads, the place of real data, and one toy-sized run of the whole graph."""

import gc
import os
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from model_ops.machine.process import set_torch_environment
from tests.command import PROJECT, millrace, millrace_process
from tests.kept import digest_of_code, forget_kept_folders, kept

pytest_plugins = ["pytester", "tests.cpu_time", "tests.first_lines", "tests.long_files", "tests.one_process", "tests.shapes"]

gc.disable()  # until all tests are collected

SHARED = PROJECT.parent / "shared"

# Read when torch loads, by child processes too. The models are tiny: a second thread costs more than it gives.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
set_torch_environment()
for name in ("MILLRACE_LAKE", "MILLRACE_HOME", "MILLRACE_RECIPES", "MILLRACE_PROGRESS", "DAGSTER_HOME"):
    os.environ.pop(name, None)

# How fast the machine is says nothing of a law
settings.register_profile("millrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("millrace")


@pytest.hookimpl(tryfirst=True)  # before the marks choose the tests
def pytest_collection_modifyitems(items):
    """What looks at a run of the whole graph is slow: the run takes a minute or two."""
    for item in items:
        if "toy" in item.fixturenames:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Imported modules and collected tests live until the end: the garbage collector need not visit them, then or later."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(exitstatus):
    gc.unfreeze()  # libraries complain about objects that are there at the end of the process
    forget_kept_folders(exitstatus)


def pytest_runtest_setup(item):
    """Skips tests with the mark `gpu` where there is no CUDA device."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("there is no CUDA device here; run `make gpu` on a machine that has one")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and models beside the checkout; tests that need it are skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("there is no ../shared beside this checkout: no real data to test with")
    return SHARED


@pytest.fixture(scope="session")
def cli():
    """The `millrace` command: cli("sql", "select 1", "--lake", lake, check=0). Its imports are loaded here, so that the seconds
    of Dagster and DuckDB count for no single test."""
    import pipelines.cli
    import pipelines.running.run  # noqa: F401

    return millrace


TOY_RECIPE = """
workload: toy-assistant
base_model: tiny
threads: 1
sources:
  gateway: {uri: traffic/gateway}
  litellm: {uri: traffic/litellm}
  thumbs:  {uri: traffic/feedback}
last_day: 2026-06-02
seeds:
  handmade: {uri: traffic/seeds.jsonl}
evals:
  heldout: {uri: traffic/evals/heldout_functions.jsonl}
datasets:
  sft: {test_share: 0.15, validation_share: 0.05}
tiny: {steps: 20, layers: 6, tokens_per_step: 2048, max_length: 512, vocab_size: 1024, hidden_size: 64, mlp_size: 128, learning_rate: 3.0e-3}
sft: {steps: 15, tokens_per_step: 2048, max_length: 512, learning_rate: 1.0e-3}
student: {layers: 4, steps: 10, tokens_per_step: 2048, max_length: 512, learning_rate: 1.0e-3}
speculator:
  steps: 15
  tokens_per_step: 1024
  max_length: 512
  ttt_steps: 2
  learning_rate: 2.0e-3
  answers: {prompts: 48, max_new_tokens: 24}
evaluation: {rows: 24, prompts: 16, max_new_tokens: 24}
release:
  gates: {recovery: 0.95, acceptance_length: 1.0, acceptance_gain: null}
"""


@pytest.fixture(scope="session")
def toy_recipe() -> str:
    """The toy recipe's text; its traffic lies in traffic/ beside it."""
    return TOY_RECIPE


@pytest.fixture(scope="session")
def make_release():
    """Finishes a release of a model of a few bytes: make_release(lake, 1) is its directory, another number makes another one,
    of the same model."""
    from benchmarks.small_release import small_release

    return small_release


@dataclass(frozen=True)
class Toy:
    """A finished run of the whole graph at toy size."""

    home: Path
    lake: Path
    recipe: Path
    workload: str
    output: str

    @classmethod
    def at(cls, home: Path) -> "Toy":
        return cls(home, home / "lake", home / "toy.yaml", "toy-assistant", (home / "output").read_text())


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Toy:
    """The whole graph through Dagster, by the command line, once for all tests that look at its results. They write nothing
    there but runs that make nothing new."""
    from pipelines.demo.traffic import write_traffic

    def make(home: Path) -> None:
        write_traffic(home / "traffic", interactions=400, days=2, first_day=date(2026, 6, 1))
        (home / "toy.yaml").write_text(TOY_RECIPE)
        (home / "output").write_text(millrace_process("run", home / "toy.yaml", "--lake", home / "lake").stdout)

    return Toy.at(kept(tmp_path_factory, "toy", digest_of_code("tests/conftest.py", "tests/command.py"), make))
