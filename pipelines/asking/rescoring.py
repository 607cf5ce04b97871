"""`millrace rescore`: the answers of a reinforcement fine-tuning, graded again by the recipe's grader of today. The new grades
are the dataset `rescored_answers`, whose version follows from model, grader and files: nothing is asked twice."""

import pyarrow as pa
from rich.console import Console

from model_ops.jobs import CheckFailed, counted
from model_ops.operations import RescoreSettings
from pipelines.contract import Recipe
from pipelines.terminal import print_rows
from resources.artefacts import Registry
from resources.lake import LakeLayout, at_work, attach_parquet, rows, workbench
from resources.manifests import Manifest, ManifestError


class RescoreError(CheckFailed):
    """There are no answers to grade again, or the grader cannot work."""


def rescore_answers(recipe: Recipe, lake: LakeLayout, version: str | None) -> tuple[Manifest, pa.Table]:
    """(the dataset of new grades, means and changes by part). version: of rft_model; None: the current one. Raises
    RescoreError."""
    from resources.launching import LocalLauncher, WorkerError
    from resources.workshop import Workshop

    grader = recipe.rft.grader if recipe.rft is not None else None
    if recipe.rft is None or grader is None:
        raise RescoreError("the recipe has no rft.grader, so there is nothing to grade with: name one")
    registry = Registry(lake, recipe.workload, recipe.digest)
    try:
        model = registry.version("model", "rft_model", version) if version else registry.current("model", "rft_model")
        of_model = {item.name.rpartition("/")[2]: item for item in model.inputs}
        inputs = {"model": model, "prompts": registry.version("dataset", "rl_prompts", of_model["rl_prompts"].version)}
        if grader.asks_reward_model:
            inputs["reward_model"] = registry.current("model", "reward_model")
    except ManifestError as error:
        raise RescoreError(f"{error}; `millrace run RECIPE --select +rft_model` makes what is missing") from error
    if model.config["grader"] is None:
        raise RescoreError(f"the answers of rft_model {model.version} are attempts of several turns, which no grader reads")
    log = lake.root / "rescored" / recipe.workload / "worker.log"  # a grader's traceback is no answer to who asked
    with at_work(lake), LocalLauncher(worker_log=log) as launcher:
        workshop, settings = Workshop(registry, launcher, recipe.threads), RescoreSettings(grader=grader)
        try:
            dataset = workshop.train(
                "rescored_answers", "rescore", settings, inputs, None, kind="dataset", outside=grader.files
            )
        except WorkerError as error:
            raise RescoreError(str(error)) from error
    with workbench() as connection:
        attach_parquet(connection, "rescored", registry.directory(dataset) / "rescored.parquet")
        named = {"parts": list(grader.parts), "passing": recipe.rft.passing_grade}
        return dataset, rows(connection, "reporting/rescored_by_part", **named)


def print_rescored(dataset: Manifest, by_part: pa.Table, format: str, console: Console) -> None:
    """Prints the rows, and in a table what they mean."""
    print_rows(by_part, format, console)
    if format == "table":
        [whole] = by_part.slice(0, 1).to_pylist()
        passes, fails = f"{whole['passes']:,} pass now that failed", f"{whole['fails']:,} fail now that passed"
        said = f"Of {counted(whole['answers'], 'answer')}, {passes}, and {fails}."
        console.print(f"{said} The grades are dataset {dataset.name} {dataset.version}.", highlight=False, markup=False)
