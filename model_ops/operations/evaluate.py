"""Operation `evaluate`: held-out loss of each model, recovery of the quantized one, acceptance of the drafters.

    {"operation": "evaluate", "inputs": {"dataset": SFT_DATASET, "base": .., "sft": .., "student": .., "quantized": ..,
     "target": SERVED, "reference": ITS_UNQUANTIZED_FORM, "speculator": HEAD, "draft_model": SMALL_MODEL},
     "output": DIR, "settings": {...}}

Only dataset and target are required. A directory with two names is measured once. Reads dataset/test.parquet. Writes
report.json (measurements of the models), speed.json (tokens/s, which depend on the machine), likelihood.parquet (one line per
row and model), acceptance.parquet (one line per prompt, drafter and temperature), loss.png, acceptance.png and
acceptance_by_prompt.png. Recovery = exp(reference loss - target loss) per token, with a 95 % interval over rows. Acceptance is
measured with this project's decoder and chain drafts. Finished parts are saved under output/.work, so a killed run measures
nothing twice.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import PreTrainedModel

from model_ops.atomic_files import renamed_when_complete
from model_ops.decoding.acceptance import AcceptanceRow, summarize
from model_ops.decoding.drafters import Drafter
from model_ops.decoding.measure_acceptance import Measured, baselines, measure
from model_ops.decoding.model_drafter import ModelDrafter
from model_ops.decoding.prompts import Prompt, choose_prompts, read_prompts
from model_ops.decoding.runner import Runner
from model_ops.decoding.target import load_runner
from model_ops.errors import ModelError
from model_ops.evaluation.plots import plot_acceptance, plot_groups, plot_losses
from model_ops.evaluation.recovery_interval import recovery_interval
from model_ops.job import Job
from model_ops.models.end_of_text import end_of_text_ids
from model_ops.models.model_directory import load_model, load_tokenizer
from model_ops.operations.evaluate_settings import EvaluateSettings
from model_ops.progress import Progress
from model_ops.quantization.quantized_model import is_quantized, load_quantized
from model_ops.speculators.architectures import DRAFT_MODEL
from model_ops.speculators.factory import load_draft_model
from model_ops.training.conversations import read_documents
from model_ops.training.likelihood import RowLoss, held_out_loss, mean_loss

NOT_SCORED = ("dataset", "answers", "speculator", "draft_model")
"""Inputs without a held-out loss. Every other input is a model to score, under its name in the job."""


def run(job: Job, progress: Progress) -> dict[str, Any]:
    """Measures, writes the report, and returns its main numbers as a flat dict."""
    settings = job.settings_as(EvaluateSettings)
    if "dataset" not in job.inputs or "target" not in job.inputs:
        raise ModelError("evaluate needs the inputs dataset and target; add them to the job")
    refuse_drafters_that_do_not_fit(job, settings)
    job.output.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"settings": settings.model_dump()}
    report.update(likelihoods(job, settings, progress))
    report.update(acceptances(job, settings, progress))
    speed = report.pop("tokens_per_second")
    (job.output / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (job.output / "speed.json").write_text(json.dumps({"tokens_per_second": speed}, indent=2) + "\n")
    plot_losses({name: found["loss"] for name, found in report["models"].items()}, job.output / "loss.png")
    drafted = [summary for summary in report["acceptance"] if summary["drafter"] != "none"]
    if drafted:
        plot_acceptance(drafted, job.output / "acceptance.png")
        plot_groups(drafted, job.output / "acceptance_by_prompt.png")
    without = {f"tokens_per_second_{name}": value for name, value in speed.items() if name.startswith("none_")}
    return headline(report) | without


def likelihoods(job: Job, settings: EvaluateSettings, progress: Progress) -> dict[str, Any]:
    """Loss of every model on the same test rows, and recovery of the target if there is a reference."""
    names: dict[Path, str] = {}
    aliases: dict[str, str] = {}
    for name in _models(job):
        aliases[name] = names.setdefault(job.inputs[name].resolve(), name)
    losses: dict[str, list[RowLoss]] = {}
    test_rows = 0
    for directory, name in names.items():
        tokenizer = load_tokenizer(directory)
        documents, counts = read_documents(job.inputs["dataset"], "test", tokenizer, settings.max_length)
        test_rows = counts["rows"]
        if settings.rows is not None and len(documents) > settings.rows:
            documents = random.Random(settings.seed).sample(sorted(documents, key=lambda d: d.row_id), settings.rows)
        if not documents:
            raise ModelError(f"{job.inputs['dataset']} holds no test row with an assistant token to predict; build a larger "
                             "dataset")
        losses[name] = [RowLoss(*row) for row in _kept(
            job, f"likelihood-{name}",
            lambda directory=directory, documents=documents, name=name: [
                [row.row_id, row.nll_sum, row.tokens]
                for row in held_out_loss(_model(directory), documents, progress=progress,
                                         phase=f"held-out loss: {name}")])]
    columns = [("row_id", pa.string()), ("model", pa.string()), ("nll_sum", pa.float64()), ("tokens", pa.int64())]
    table = pa.Table.from_pylist([{"model": name, **asdict(row)} for name, rows in losses.items() for row in rows],
                                 schema=pa.schema(columns))
    pq.write_table(table, job.output / "likelihood.parquet")
    models = {name: {"loss": mean_loss(rows), "perplexity": math.exp(mean_loss(rows)), "rows": len(rows),
                     "tokens": sum(row.tokens for row in rows)} for name, rows in losses.items()}
    found: dict[str, Any] = {"models": models, "same_directory": aliases, "test_rows": test_rows}
    if "reference" in aliases:
        reference, served = models[aliases["reference"]], models[aliases["target"]]
        found["recovery"] = math.exp(reference["loss"] - served["loss"])
        interval = recovery_interval(losses[aliases["reference"]], losses[aliases["target"]], settings.seed)
        if interval is not None:
            found["recovery_low"], found["recovery_high"] = interval
    return found


def acceptances(job: Job, settings: EvaluateSettings, progress: Progress) -> dict[str, Any]:
    """Acceptance of every drafter at every temperature over held-out prompts."""
    target = job.inputs["target"]
    tokenizer, eos_ids = load_tokenizer(target), end_of_text_ids(target)
    runner = load_runner(target)
    room = min(settings.max_length, runner.max_positions - settings.max_new_tokens)
    prompts = read_prompts(job.inputs["dataset"], "test", tokenizer)
    fitting = [prompt for prompt in prompts if len(prompt.ids) <= room]
    if not fitting:
        raise ModelError(f"{job.inputs['dataset']} holds no test prompt of at most {room} tokens; raise max_length")
    chosen = choose_prompts(fitting, settings.prompts, settings.seed)
    trained, past = trained_drafters(job, runner), past_answers(job)
    rows: list[AcceptanceRow] = []
    summaries, identical, speed = [], {}, {}
    for done, temperature in enumerate(settings.temperatures):
        progress.stop_if_requested()
        progress.report("acceptance", done, len(settings.temperatures), "temperatures")
        drafters = {**baselines(past), **trained}
        measured = _measured(job, settings, runner, drafters, chosen, eos_ids, temperature)
        rows += measured.rows
        identical.update({f"{name}_t{temperature:g}": share for name, share in measured.identical.items()})
        speed.update({f"{name}_t{temperature:g}": rate for name, rate in measured.tokens_per_second.items()})
        for name in ["none", *drafters]:
            of_it = [row for row in measured.rows if row.drafter == name]
            summaries.append({"drafter": name, "temperature": temperature,
                              "num_speculative_tokens": 0 if name == "none" else settings.num_speculative_tokens,
                              **summarize(of_it, settings.seed)})
    progress.report("acceptance", len(settings.temperatures), len(settings.temperatures), "temperatures")
    pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows]), job.output / "acceptance.parquet")
    return {"acceptance": summaries, "greedy_identical_share": identical, "tokens_per_second": speed, "prompts": len(chosen),
            "prompts_asked": settings.prompts, "prompts_too_long": len(prompts) - len(fitting),
            "past_answers": len(past)}


def refuse_drafters_that_do_not_fit(job: Job, settings: EvaluateSettings) -> None:
    """Raises ModelError for a speculator that drafts fewer tokens than requested, and for a model with another tokenizer."""
    if "speculator" in job.inputs:
        longest = load_draft_model(job.inputs["speculator"]).longest_chain
        if longest is not None and longest < settings.num_speculative_tokens:
            raise ModelError(f"{job.inputs['speculator']} drafts {longest} tokens and num_speculative_tokens is "
                             f"{settings.num_speculative_tokens}: set it to {longest}, or train for more")
    if "draft_model" in job.inputs:
        small = job.inputs["draft_model"]
        if load_tokenizer(small).get_vocab() != load_tokenizer(job.inputs["target"]).get_vocab():
            raise ModelError(f"{small} has another tokenizer than the target; give a model of the target's own family")


def past_answers(job: Job) -> list[list[int]]:
    """The target's answers to training prompts, for the cache of suffix decoding; [] if the job has no answers."""
    if "answers" not in job.inputs:
        return []
    path = job.inputs["answers"] / "train.parquet"
    try:
        return pq.read_table(path, columns=["answer_token_ids"])["answer_token_ids"].to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ModelError(f"{path} holds no answer_token_ids: give as `answers` a directory that `generate` wrote") from error


def trained_drafters(job: Job, runner: Runner) -> dict[str, Drafter]:
    """The speculator, under its architecture's name and sampling as in servers, and the small language model `draft_model`,
    which is called `draft_model_untrained` if the speculator has that architecture."""
    found: dict[str, Drafter] = {}
    if "speculator" in job.inputs:
        model = load_draft_model(job.inputs["speculator"], runner.dtype).to(runner.device).attach(runner)
        found[model.kind] = model.drafter(greedy=model.served_greedily)
    if "draft_model" in job.inputs:
        name = DRAFT_MODEL.untrained if DRAFT_MODEL.name in found else DRAFT_MODEL.name
        found[name] = ModelDrafter(load_runner(job.inputs["draft_model"]), runner.embedding.shape[0])
    return found


def headline(report: dict[str, Any]) -> dict[str, Any]:
    """Numbers for gates and tables: loss_<model>, recovery[_low|_high], tau_<drafter>_t<temperature>[_low|_high]."""
    numbers: dict[str, Any] = {f"loss_{name}": found["loss"] for name, found in report["models"].items()}
    for name, same in report["same_directory"].items():
        numbers[f"loss_{name}"] = report["models"][same]["loss"]
    if "recovery" in report:
        numbers.update({name: report[name] for name in ("recovery", "recovery_low", "recovery_high") if name in report})
    for summary in report["acceptance"]:
        name = f"{summary['drafter']}_t{summary['temperature']:g}"
        if summary["drafter"] == "none":
            numbers[f"looping_share_t{summary['temperature']:g}"] = summary["looping_share"]
        else:
            numbers.update({f"tau_{name}": summary["tau"], f"tau_{name}_low": summary["tau_low"],
                            f"tau_{name}_high": summary["tau_high"]})
    for name, share in report["greedy_identical_share"].items():
        numbers[f"greedy_identical_{name}"] = share
    return {**numbers, "prompts": report["prompts"], "test_rows": report["test_rows"]}


def _measured(job: Job, settings: EvaluateSettings, runner, drafters: dict[str, Drafter], prompts: list[Prompt],
              eos_ids: frozenset[int], temperature: float) -> Measured:
    kept = _kept(job, f"acceptance-{temperature:g}", lambda: asdict(measure(
        runner, drafters, prompts, eos_ids=eos_ids, temperature=temperature, max_new_tokens=settings.max_new_tokens,
        num_speculative_tokens=settings.num_speculative_tokens, batch_size=settings.batch_size, seed=settings.seed)))
    rows = [AcceptanceRow(**row) for row in kept["rows"]]
    return Measured(rows, kept["tokens_per_second"], kept["identical"])


def _models(job: Job) -> list[str]:
    """Names of the models to score. A directory with two names is reported under the first: a stage's before `target`."""
    compared = [name for name in ("target", "reference") if name in job.inputs]
    return [*(name for name in job.inputs if name not in (*NOT_SCORED, *compared)), *compared]


def _model(directory: Path) -> PreTrainedModel:
    """The model in float32, for packed rows; the layers of a quantized one compute what a server computes."""
    if is_quantized(directory):
        return load_quantized(directory, torch.float32, "packed")
    return load_model(directory, attention="packed")


def _kept(job: Job, name: str, measure_it: Callable[[], Any]) -> Any:
    """The result of `measure_it`, cached as JSON under output/.work together with its settings and inputs."""
    path = job.output / ".work" / f"{name}.json"
    columns = [field.name for field in fields(AcceptanceRow)]  # results of an older version are measured again
    inputs = {name: str(path) for name, path in sorted(job.inputs.items())}
    key = json.loads(json.dumps([job.settings, inputs, columns]))
    if path.exists():
        kept = json.loads(path.read_text())
        if kept["key"] == key:
            return kept["value"]
    value = measure_it()
    with renamed_when_complete(path) as temporary:
        temporary.write_text(json.dumps({"key": key, "value": value}))
    return value
