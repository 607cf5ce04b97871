"""`millrace sweep`: short trainings of one stage at several learning rates, on the lake's own dataset and model.

    report = sweep(recipe, lake, "sft", rates=[1e-5, 3e-5, 1e-4], steps=100)

Each training has all settings of the stage, but fewer steps and so a shorter schedule: the best rate is a good guess for a
long run, not a proof. Trainings are kept under <lake>/sweeps, named by a digest of their settings: finished ones are not
repeated, stopped ones continue. They are not artefacts.

The best rate has the lowest final held-out loss. Each rate is tried once, with one seed; the change of held-out loss between
the last two validations is the only known noise, so rates closer than that count as equal. Seeds may differ more.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from model_ops.files import write_json
from model_ops.jobs import CheckFailed, Job, Misuse
from model_ops.training import MOST_VALIDATION_TOKENS, TrainingSettings
from pipelines.contract import Recipe
from pipelines.planning.chosen_stage import chosen_stage
from pipelines.storage import storage_sentence
from resources.artefacts import Registry
from resources.lake import LakeLayout, at_work
from resources.manifests import SCRATCH, ManifestError
from resources.stages import planned_sections
from stores.in_use import hold

if TYPE_CHECKING:
    from resources.launching import LocalLauncher


LEAST_STEPS = 8


class SweepError(Misuse):
    """The sweep cannot be run; the message says what is missing."""


class SweepFailed(CheckFailed):
    """A training of the sweep ended early; finished ones are kept."""


@dataclass(frozen=True)
class RateResult:
    """One rate: final held-out loss, its change over the last points, and the training loss. None: the training diverged."""

    learning_rate: float
    loss: float | None
    wobble: float
    training_loss: float | None
    broke: str | None = None


@dataclass(frozen=True)
class Report:
    """All rates, ascending; `best` is None if every training diverged."""

    stage: str
    steps: int
    tried: list[RateResult]
    folder: Path

    @property
    def best(self) -> RateResult | None:
        whole = [one for one in self.tried if one.loss is not None]
        return min(whole, key=lambda one: one.loss) if whole else None

    @property
    def tied(self) -> list[RateResult]:
        """Rates whose loss is within the noise of the best rate's."""
        best = self.best
        return (
            []
            if best is None
            else [
                one
                for one in self.tried
                if one.loss is not None and one is not best and one.loss - best.loss <= math.hypot(one.wobble, best.wobble)
            ]
        )

    @property
    def at_the_edge(self) -> bool:
        """Whether the best rate is the lowest or the highest tried; a better rate may be outside."""
        return self.best is not None and len(self.tried) > 1 and self.best in (self.tried[0], self.tried[-1])


def rates_around(centre: float, points: int) -> list[float]:
    """`points` rates around `centre`, a factor of 2 apart, or more if they would span less than a factor of 8."""
    if points < 2:
        raise SweepError("--points: at least 2 learning rates are needed to compare")
    if not (0 < centre < 10):
        raise SweepError(f"--around {centre:g} is no learning rate; they lie between 0 and 10")
    step = max(2.0, 8 ** (1 / (points - 1)))
    return [float(f"{centre * step ** (i - (points - 1) / 2):.2g}") for i in range(points)]


def read_rates(text: str) -> list[float]:
    """`1e-5,3e-5,1e-4` as numbers, ascending. Raises SweepError for an invalid learning rate."""
    rates = []
    for word in text.split(","):
        try:
            rate = float(word)
        except ValueError as error:
            raise SweepError(f"--learning-rates: {word.strip()!r} is no number; say them as 1e-5,3e-5,1e-4") from error
        if not (0 < rate < 10):
            raise SweepError(f"--learning-rates: {word.strip()} is no learning rate; they lie between 0 and 10")
        rates.append(rate)
    if len(set(rates)) < 2:
        raise SweepError("--learning-rates: at least 2 different ones are needed to compare")
    return sorted(set(rates))


def swept_stage(recipe: Recipe, asked: str | None) -> str:
    """The section of the stage that is swept, by default the first that the recipe trains. Raises SweepError."""
    try:
        stage = chosen_stage(recipe, asked)
    except ValueError as error:
        raise SweepError(str(error)) from error
    if not planned_sections()[stage].has_held_out_loss:
        raise SweepError(
            f"--stage {stage}: a sweep compares held-out losses, and training on rewards has none; compare "
            f"validation_pass_rate of runs with different {stage}.learning_rate"
        )
    return stage


def sweep(
    recipe: Recipe,
    lake: LakeLayout,
    stage: str,
    rates: Sequence[float],
    steps: int | None,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Trains once at every rate. Raises SweepError if the dataset or the model is not in the lake yet."""
    from resources.launching import LocalLauncher

    stage = swept_stage(recipe, stage)
    settings = getattr(recipe, stage).resolved()
    steps = min(100, settings.steps or 100) if steps is None else steps
    if steps < LEAST_STEPS:
        raise SweepError(f"--steps {steps}: fewer than {LEAST_STEPS} steps say nothing about a learning rate")
    trained = planned_sections()[stage]
    operation, role, source = trained.operation, trained.takes_model_as, recipe.policy.source_of(trained.name)
    registry = Registry(lake, recipe.workload)
    inputs = {}
    for name, kind, asset in ((role, "model", source), ("dataset", "dataset", recipe.policy.rows_of(trained.name))):
        try:
            inputs[name] = registry.current(kind, asset)
        except ManifestError as error:
            raise SweepError(
                f"{recipe.workload} has no {asset} in {lake.place} yet: millrace run RECIPE {lake.option} "
                f"--select +{asset} makes it"
            ) from error
    places = {name: registry.directory(manifest) for name, manifest in inputs.items()}
    if not (places["dataset"] / "validation.parquet").exists():
        raise SweepError(
            "the dataset holds no validation rows, so no rate could be called better: set "
            "datasets.sft.validation_share above 0 and run again"
        )
    home = lake.root / "sweeps" / recipe.workload / stage
    tried = []
    with at_work(lake), LocalLauncher(worker_log=home / "worker.log") as launcher:
        for number, rate in enumerate(sorted(rates), 1):
            say(f"learning rate {rate:g}, {number} of {len(rates)}: {steps} steps")
            config = trial_settings(settings, rate, steps).model_dump(mode="json")
            digests = {name: manifest.digest for name, manifest in inputs.items()}
            named = hashlib.sha256(json.dumps([operation, config, digests], sort_keys=True).encode()).hexdigest()[:12]
            tried.append(
                _try(
                    launcher,
                    lake,
                    Job(operation=operation, output=home / named, inputs=places, settings=config, threads=recipe.threads),
                    rate,
                )
            )
    report = Report(stage, steps, tried, home)
    write_json(
        home / "report.json",
        {
            "stage": stage,
            "steps": steps,
            "best": report.best and report.best.learning_rate,
            "tied": [one.learning_rate for one in report.tied],
            "tried": [asdict(one) for one in tried],
        },
    )
    return report


def trial_settings(settings: TrainingSettings, rate: float, steps: int) -> TrainingSettings:
    """The settings of one training: all of the same length, so that they can be compared."""
    changed: dict[str, Any] = {
        "learning_rate": rate,
        "steps": steps,
        "epochs": None,
        "validation_tokens": settings.validation_tokens or MOST_VALIDATION_TOKENS,
    }  # it is what a sweep compares
    return settings.model_copy(update=changed)


def _try(launcher: LocalLauncher, lake: LakeLayout, job: Job, rate: float) -> RateResult:
    """Runs or continues one training. After its end only the metrics are kept."""
    from resources.launching import WorkerError

    result = job.output / "result.json"
    if not result.exists():
        hold(job.output)
        try:
            launcher.run(job)
        except WorkerError as error:
            if "not a finite number" not in str(error):
                raise SweepFailed(storage_sentence(error, lake.root) or f"learning rate {rate:g}: {error}") from error
            return RateResult(rate, None, 0.0, None, broke="the loss is not finite")
        lines = [json.loads(line) for line in (job.output / "metrics.jsonl").read_text().splitlines()]
        shutil.rmtree(job.output / SCRATCH, ignore_errors=True)  # checkpoints of a finished training
        write_json(
            result,
            {
                "validation": [line["validation_loss"] for line in lines if "validation_loss" in line],
                "training": [line["loss"] for line in lines],
            },
        )
        _drop_weights(job.output)
    found: dict[str, Any] = json.loads(result.read_text())
    validation, training = found["validation"], found["training"]
    tail = training[-max(1, len(training) // 10) :]
    return RateResult(rate, validation[-1], pstdev(validation[-2:]) if len(validation) > 1 else 0.0, fmean(tail))


def _drop_weights(folder: Path) -> None:
    for path in folder.rglob("*.safetensors"):
        path.unlink()


def print_sweep(report: Report, console: Console) -> None:
    """Prints one row per rate, a sentence on the best rate, and the line to paste."""
    best, tied = report.best, report.tied
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("learning rate", "held-out loss", "± last points", "training loss", ""):
        table.add_column(name, justify="left" if not name else "right")
    for one in report.tried:
        if one.loss is None:
            table.add_row(f"{one.learning_rate:g}", "-", "", "", Text(one.broke, style="red"))
            continue
        mark = "[bold green]best" if one is best else "[yellow]no different" if one in tied else ""
        table.add_row(f"{one.learning_rate:g}", f"{one.loss:.4f}", f"{one.wobble:.4f}", f"{one.training_loss:.4f}", mark)
    console.print(f"[bold]{report.stage}[/], {report.steps} steps each", highlight=False)
    console.print(table, highlight=False)
    if best is None:
        console.print("every rate diverged: try lower ones", style="red")
        return
    if tied:
        console.print(
            f"{', '.join(f'{one.learning_rate:g}' for one in tied)} cannot be told from the best: the difference is "
            "within what validation moved over its last two points.",
            highlight=False,
            soft_wrap=True,
        )
    if report.at_the_edge:
        console.print("The best rate is the lowest or highest tried; a better one may be outside.", soft_wrap=True)
    console.print(
        f"[dim]One seed and a short schedule. Report: {escape(str(report.folder))}. To paste:[/]",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"{report.stage}:\n  learning_rate: {_yaml_number(best.learning_rate)}", highlight=False)


def _yaml_number(rate: float) -> str:
    """A rate with a decimal point, because YAML 1.1 reads 2e-05 as text."""
    digits, _, exponent = f"{rate:.3e}".partition("e")
    digits = digits.rstrip("0")
    return f"{digits}{'0' if digits.endswith('.') else ''}e{int(exponent):+03d}"
