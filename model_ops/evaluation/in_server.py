"""The models of a release in a real server: whether it loads them, whether it says what own layers compute, tokens/s.

served_distance: |log-probability in the server - by own layers| of each answer token of held-out rows. served_agreement: the
share of the server's greedy tokens that own layers rank first or at most TIE_NATS behind: servers compute in 16 bits, where
such tokens tie. tokens/s: the median of several passes of greedy answers of a fixed length. A model that the server does not
load is a result (`not_measured`); a server that is not installed raises ModelError before anything is measured."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from statistics import median
from typing import Any

import numpy as np
from torch import nn

from model_ops.documents import Document, RowLoss, mean_loss
from model_ops.drafting import NO_DRAFTING, Drafting, varying_drafting
from model_ops.evaluation.likelihoods import loss_increase_interval
from model_ops.evaluation.measurement import (
    GREEDY,
    OWN_LAYERS,
    PAIRED,
    REFERENCE,
    TARGET,
    TIE_NATS,
    WITH_DRAFTER,
    Findings,
    What,
    in_a_server,
    measured_draftings,
)
from model_ops.evaluation.row_tables import finished
from model_ops.evaluation.served_forms import Form, drafter_serving, drafting_form, drafting_forms, forms, held_out_texts, serve
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.evaluation.token_scores import Answers, TokenScores, first_differences, scored_model, token_scores
from model_ops.jobs import Job, ModelError, Progress
from model_ops.machine import give_back_memory
from model_ops.serving import NotRunnable, ServerFailed, program_of, varies_by_batch_size

SAMPLES, SAMPLE_CHARACTERS = 2, 400
Served = dict[str, dict[str, Any]]
"""Name of a form that was served -> what `serve` returned."""


@dataclass
class InServer(Findings):
    """Measurements in a real server."""

    summary: dict[str, Any] = field(default_factory=dict)
    """The report's `in_server`; {} if no server was asked for."""
    speed: dict[str, Any] = field(default_factory=dict)
    """Tokens per second, start time and memory of each form."""


def in_server(job: Job, settings: EvaluateSettings, progress: Progress, lookups: Mapping[str, int] | None = None) -> InServer:
    """Serves each form and compares the served model with own layers; nothing if no server is asked for. lookups: the best
    length of each lookup drafter."""
    result, asked = InServer(), settings.server
    if asked is None:
        return result
    texts = held_out_texts(job, settings)
    served: Served = {}
    every = [*forms(job, settings), *drafting_forms(job, settings, lookups or {})]
    _serve_each(result, job, settings, every, texts, served, progress)
    by_batch_size = _by_batch_size(job, settings, served)
    if by_batch_size is not None:
        every.append(drafting_form(job, settings, by_batch_size))
        _serve_each(result, job, settings, every[-1:], texts, served, progress)
    result.summary = {
        "kind": asked.kind,
        "version": next((each["version"] for each in served.values()), None),
        "arguments": asked.arguments,
        "max_new_tokens": asked.max_new_tokens,
        "tie_nats": TIE_NATS,
        "forms": {form.name: _form_of_report(served.get(form.name)) for form in every},
        "samples": _samples(served),
    }
    result.speed = _speed(served)
    _compare(result, job, settings, served, texts)
    return result


def _serve_each(
    result: InServer,
    job: Job,
    settings: EvaluateSettings,
    every: Sequence[Form],
    texts: list[Document],
    served: Served,
    progress: Progress,
) -> None:
    """Adds what each form answered to `served`, or why it did not to `result.not_measured`."""
    asked = settings.asked_server
    for form in every:
        progress.stop_if_requested()
        if form.drafting != NO_DRAFTING and TARGET not in served:
            result.not_measured[in_a_server(form.name)] = result.not_measured[in_a_server(TARGET)]
            continue
        give_back_memory()  # the server needs the device's memory
        try:
            served[form.name] = finished(
                job,
                f"server-{_key(form.name).replace('_', '-')}",
                lambda form=form: serve(job, settings, form, texts, progress),
            )
        except ServerFailed as failed:
            result.not_measured[in_a_server(form.name)] = f"{asked.kind} did not load it: {failed}"
        except NotRunnable as failed:
            raise ModelError(f"evaluation.server: {failed}") from failed
        except ModelError as failed:
            result.not_measured[in_a_server(form.name)] = str(failed)


def _by_batch_size(job: Job, settings: EvaluateSettings, served: Served) -> Drafting | None:
    """K by batch size, if it promises to be faster than the same K everywhere."""
    if TARGET not in served:
        return None
    serving = drafter_serving(job)
    return varying_drafting(
        measured_draftings({name: each for name, each in served.items() if name != REFERENCE}),
        lambda drafting: varies_by_batch_size(settings.asked_server.kind, drafting, serving),
    )


def refuse_missing_server(settings: EvaluateSettings) -> None:
    """Raises ModelError if the server of the settings is not installed."""
    if settings.server is not None:
        program_of(settings.server.kind, settings.server.python)


def headline(report: dict[str, Any], speed: dict[str, Any]) -> dict[str, Any]:
    """Flat numbers for tables and curves, of the report's `in_server` and of its speed."""
    numbers: dict[str, Any] = {
        f"loads_in_server_{_key(name)}": form["loaded"] for name, form in report.get("forms", {}).items()
    }
    if "median_distance" in report:
        numbers["served_distance_median"] = report["median_distance"]
    for name, form in speed.get("forms", {}).items():
        numbers |= {
            f"tokens_per_second_served_{_key(name)}_c{concurrency}": rate["median"]
            for concurrency, rate in form["tokens_per_second"].items()
        }
    for name, ratios in speed.get("ratios", {}).items():
        numbers |= {f"tokens_per_second_ratio_{_key(name)}_c{concurrency}": ratio for concurrency, ratio in ratios.items()}
    return numbers


def _key(name: str) -> str:
    """The name with letters and digits only, joined by underscores."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")


def _form_of_report(served: dict[str, Any] | None) -> dict[str, Any]:
    if served is None:
        return {"loaded": False}
    return {"loaded": True, "prompts": len(served["replies"]), "tau": served["tau"]}


def _samples(served: Served) -> list[dict[str, str]]:
    """Some answers of the model as it is served, cut."""
    replies = served.get(WITH_DRAFTER, served.get(TARGET, {"replies": []}))["replies"]
    return [
        {"row_id": reply["row_id"], "text": reply["text"][:SAMPLE_CHARACTERS]} for reply in replies if reply["text"].strip()
    ][:SAMPLES]


def _speed(served: Served) -> dict[str, Any]:
    """tokens/s, memory and seconds to start of each form; ratios of tokens/s: the target over its unquantized form, and with
    its drafter over without."""
    rates = {name: form["tokens_per_second"] for name, form in served.items()}
    ratios = {
        name: {concurrency: rate["median"] / rates[against][concurrency]["median"] for concurrency, rate in rates[name].items()}
        for name, against in ((TARGET, REFERENCE), (WITH_DRAFTER, TARGET))
        if name in rates and against in rates
    }
    shown = ("tokens_per_second", "as_logged", "drafting", "started_s", "memory_mb")
    forms = {name: {key: form[key] for key in shown} for name, form in served.items()}
    return {"forms": forms, "ratios": ratios} if served else {}


def _compare(result: InServer, job: Job, settings: EvaluateSettings, served: Served, texts: list[Document]) -> None:
    """Adds the measurements of the target's forms, and why there are none."""
    names = [name for name in served if name != REFERENCE]
    if not names:
        return
    model = scored_model(job.inputs["target"])
    if TARGET in names:
        asked = served[TARGET]["logprobs"]
        read = [text for text in texts if text.row_id in asked]
        distances = _distances(read, asked, token_scores(model, read))
        if distances:
            result.summary["median_distance"] = median(chain.from_iterable(distances.values()))
            rows = [RowLoss(row_id, sum(values), len(values)) for row_id, values in distances.items()]
            _measure(result, "served_distance", TARGET, rows, "nats per token")
        else:
            result.not_measured["served_distance"] = "no held-out row with an answer fits the server's longest context"
    for name in names:
        answers = _answers(served[name])
        if answers:
            rows = [
                RowLoss(row_id, float(sum(gap <= TIE_NATS for gap in scores.gaps)), len(scores.gaps))
                for row_id, scores in token_scores(model, answers).items()
            ]
            _measure(result, "served_agreement", name, rows, "share", "prompts")
        else:
            result.not_measured[f"served_agreement of {name}"] = (
                f"{settings.asked_server.kind} returned no token ids of its answers, so they cannot be compared"
            )
    if TARGET in served and len(names) > 1:
        alone = _token_ids(served[TARGET])
        result.summary["greedy_differences"] = {
            name: _differences(alone, _token_ids(served[name]), model) for name in names if name != TARGET
        }


def _token_ids(form: dict[str, Any]) -> Answers:
    """Prompt and answer of each reply that came with token ids."""
    return {reply["row_id"]: (reply["prompt"], reply["tokens"]) for reply in form["replies"] if reply["tokens"]}


def _differences(alone: Answers, drafted: Answers, model: nn.Module) -> dict[str, Any]:
    """How many greedy answers with a drafting are those without, how many differ first in a tie, and the others."""
    result = first_differences(model, alone, drafted)
    ties = sum(each.is_tie for each in result)
    prompts = len(alone.keys() & drafted.keys())
    return {
        "prompts": prompts,
        "identical": prompts - len(result),
        "ties": ties,
        "others": [asdict(each) for each in result if not each.is_tie],
    }


def _distances(texts: list[Document], asked: dict[str, list[float]], own: dict[str, TokenScores]) -> dict[str, list[float]]:
    """By row: |log-probability in the server - by own layers| of each answer token."""
    result = {}
    for text in texts:
        answer = np.flatnonzero(text.targets[1:])
        result[text.row_id] = np.abs(np.array(asked[text.row_id])[answer] - np.array(own[text.row_id].logprobs)).tolist()
    return result


def _answers(form: dict[str, Any]) -> list[Document]:
    """Prompt and answer of each reply that came with token ids; the answer's tokens are the targets."""
    return [
        Document(
            reply["row_id"],
            np.array([*reply["prompt"], *reply["tokens"]], dtype=np.int32),
            np.arange(len(reply["prompt"]) + len(reply["tokens"])) >= len(reply["prompt"]),
        )
        for reply in form["replies"]
        if reply["tokens"]
    ]


def _measure(result: Findings, what: What, of: str, rows: list[RowLoss], unit: str, counted: str = "rows") -> None:
    """Adds the mean per token over the rows, with its interval over the choice of rows."""
    ends = loss_increase_interval([RowLoss(row.row_id, 0.0, row.tokens) for row in rows], rows)
    about = {"of": of, "against": OWN_LAYERS, "sampling": GREEDY if counted == "prompts" else ""}
    result.measure(what, mean_loss(rows), ends, len(rows), counted, unit, method=PAIRED.replace("rows", counted), **about)
