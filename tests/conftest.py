"""What the tests share: quiet threads, the place of real data, and one toy-sized run of the whole graph."""

import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from model_ops.torch_environment import set_torch_environment

PROJECT = Path(__file__).resolve().parents[1]
SHARED = PROJECT.parent / "shared"

os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
set_torch_environment()
for name in ("MILLRACE_LAKE", "MILLRACE_HOME", "MILLRACE_RECIPES", "MILLRACE_PROGRESS", "DAGSTER_HOME"):
    os.environ.pop(name, None)

# How fast the machine is says nothing of a law
settings.register_profile("millrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("millrace")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and models beside the checkout; tests that need it are skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("there is no ../shared beside this checkout: no real data to test with")
    return SHARED


def millrace(*words: str | Path, check: int | None = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as a person would; fails the test unless it exits with `check`."""
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.cli", *map(str, words)],
        cwd=PROJECT, env={**os.environ, "COLUMNS": "160", **environment}, capture_output=True, text=True,
    )
    if check is not None:
        assert done.returncode == check, f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


@pytest.fixture(scope="session")
def cli():
    """The `millrace` command: cli("sql", "select 1", "--lake", lake, check=0)."""
    return millrace


TOY_RECIPE = """
workload: toy-assistant
base_model: tiny
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
tiny: {steps: 30, tokens_per_step: 2048, max_length: 512, vocab_size: 1024, hidden_size: 64, mlp_size: 128, learning_rate: 3.0e-3}
sft: {steps: 15, tokens_per_step: 2048, max_length: 512, learning_rate: 1.0e-3}
student: {layers: 7, steps: 10, tokens_per_step: 2048, max_length: 512, learning_rate: 1.0e-3}
speculator:
  steps: 15
  tokens_per_step: 1024
  max_length: 512
  ttt_steps: 2
  learning_rate: 2.0e-3
  answers: {prompts: 48, max_new_tokens: 24}
evaluation: {rows: 24, prompts: 16, max_new_tokens: 24}
release:
  gates: {recovery: 0.95, acceptance_length: 1.0}
"""


@pytest.fixture(scope="session")
def toy_recipe() -> str:
    """The toy recipe's text; its traffic lies in traffic/ beside it."""
    return TOY_RECIPE


@pytest.fixture(scope="session")
def make_release():
    """Finishes a release of a model of a few bytes: make_release(lake, 1) is its directory, another number makes another one,
    of the same model."""
    from resources.artefacts.registry import Registry
    from resources.releasing.gates import GateResult
    from resources.releasing.release import write_release

    def make(lake, number: int, workload: str = "tutor", recovery: float = 0.999) -> Path:
        registry = Registry(lake, workload)

        def finished(kind, name, config, inputs, fill):
            draft = registry.draft(kind, name, name, ("model_ops/job.py",), config, [item.as_input() for item in inputs])
            if draft.finished is None:
                fill(draft.directory)
            return draft.finished or registry.finish(draft, {})

        target = finished("model", "sft_model", {}, [], lambda home: (home / "config.json").write_text("{}"))
        report = finished("dataset", "evaluation_report", {}, [target], lambda home: (home / "report.json").write_text("{}"))
        gate = GateResult(name="recovery", wanted=0.99, measured=recovery, passed=True)
        release = finished("release", "release", {"number": number}, [target, report],
                           lambda home: write_release(home, workload, target, None, number, [gate]))
        return registry.directory(release)

    return make


@dataclass(frozen=True)
class Toy:
    """A finished run of the whole graph at toy size."""

    home: Path
    lake: Path
    recipe: Path
    workload: str
    output: str


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Toy:
    """The whole graph through Dagster, by the command line, once for all tests that look at its results."""
    from pipelines.demo.traffic import write_traffic

    home = tmp_path_factory.mktemp("toy")
    write_traffic(home / "traffic", interactions=400, days=2, first_day=date(2026, 6, 1))
    recipe = home / "toy.yaml"
    recipe.write_text(TOY_RECIPE)
    done = millrace("run", recipe, "--lake", home / "lake")
    return Toy(home, home / "lake", recipe, "toy-assistant", done.stdout)
