"""One form of a release's model in a real server: how it is started, what it is asked, what it answers.

The 99th percentile of 64 requests is nearly the slowest of them, and not the tail. So at least ABOVE requests lie above the
quantile that `tail_s` takes, and it is at least the median: of 500 requests the 99th percentile, of 64 the 92nd, of 8 the
median."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from model_ops.completions import NEUTRAL, PENALTIES, Sampling, ServedAnswers, ServedModel, measure_served, server_defaults
from model_ops.decoding import Prompt, choose_prompts, read_prompts
from model_ops.documents import Document, read_documents
from model_ops.drafting import LOOKUPS, NO_DRAFTING, Drafting, tau_of, with_drafter
from model_ops.evaluation.measurement import AS_LOGGED, REFERENCE, TARGET, WITH_DRAFTER, at_temperature
from model_ops.evaluation.settings import EvaluateSettings, ServerSettings
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import load_tokenizer, read_config
from model_ops.serving import (
    SERVES_FLOAT32,
    RunningServer,
    dtype_words,
    program_of,
    running_server,
    runs_drafter,
    server_environment,
    words_of,
)
from model_ops.speculators import DrafterServing, architecture_of
from model_ops.training import first_documents


@dataclass(frozen=True)
class Mode:
    """One way to sample answers."""

    label: str
    """Value of a Measurement's `sampling`."""
    key: str
    """Part of a metric's name."""
    temperature: float | None
    """None if requests had several."""
    groups: list[tuple[Sampling, list[Prompt]]]
    same_as: str | None = None
    """Label of a mode with the same answers, measured before."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Prompts by parameter of their request that the decoder does not apply."""


def modes(target: Path, served: Path | None, prompts: Sequence[Prompt], temperatures: Sequence[float]) -> list[Mode]:
    """The modes of an evaluation; `as logged` is the last one. served: the dataset served_answers, if there is one. Raises
    ModelError if `served` cannot be read."""
    fixed = [
        Mode(at_temperature(each), f"t{each:g}", each, [(Sampling(temperature=each), list(prompts))]) for each in temperatures
    ]
    groups, left_out = _as_logged(target, served, prompts)
    same = next((mode.label for mode in fixed if [sampling for sampling, _ in groups] == [mode.groups[0][0]]), None)
    alone = groups[0][0].temperature if len({sampling.temperature for sampling, _ in groups}) == 1 else None
    return [*fixed, Mode(AS_LOGGED, "as_logged", alone, groups, same, left_out)]


def _as_logged(
    target: Path, served: Path | None, prompts: Sequence[Prompt]
) -> tuple[list[tuple[Sampling, list[Prompt]]], dict[str, int]]:
    log = None if served is None else ServedAnswers.read(served / "served.parquet", target)
    defaults, left_out = server_defaults(target), Counter[str]()
    groups: dict[Sampling, list[Prompt]] = {}
    for prompt in prompts:
        sampling = defaults if log is None else log.sampling(prompt.interaction_id)
        left_out.update(sampling.unsupported_names)
        groups.setdefault(_decoded(sampling), []).append(prompt)
    return sorted(groups.items(), key=lambda group: repr(group[0])), dict(sorted(left_out.items()))


def _decoded(sampling: Sampling) -> Sampling:
    """The parameters that the decoder applies. Truncation does nothing to greedy answers."""
    others = {name: value for name, value in json.loads(sampling.others).items() if name.removesuffix("_penalty") in PENALTIES}
    decoded = replace(sampling, max_tokens=None, others=json.dumps(others, sort_keys=True))
    return replace(decoded, truncation=Sampling().truncation) if decoded.temperature == 0 else decoded


NAME = "served"
"""How requests call the model."""
TEXTS, TEXT_TOKENS = 16, 8_192
"""Most held-out rows whose log-probabilities are asked for, and most tokens of them together."""
PASSES = 8
"""Passes for tokens/s, each of as many requests as are sent at a time."""
LOG = "server.log"
ENDING_S = 10.0
"""Seconds in which a server that broke a connection has ended, if it has."""


@dataclass(frozen=True)
class Form:
    """How one server is started: name, model directory, arguments, and drafting."""

    name: str
    directory: Path
    words: list[str]
    drafting: Drafting = NO_DRAFTING


def forms(job: Job, settings: EvaluateSettings) -> list[Form]:
    """The forms to serve, in order. A model that is not quantized has no unquantized form."""
    asked, target, reference = settings.asked_server, job.inputs["target"], job.inputs.get("reference")
    every = []
    if asked.unquantized and reference is not None and reference.resolve() != target.resolve():
        every.append(_form(REFERENCE, reference, settings))
    every.append(_form(TARGET, target, settings))
    serving = drafter_serving(job)
    if serving is not None and runs_drafter(asked.kind, serving):
        every.append(_form(WITH_DRAFTER, target, settings, with_drafter(settings.num_speculative_tokens), job))
    return every


def drafting_forms(job: Job, settings: EvaluateSettings, lookups: Mapping[str, int]) -> list[Form]:
    """The served model with every other drafting that is to be measured. lookups: the best length of each lookup."""
    return [drafting_form(job, settings, each) for each in _draftings(settings, drafter_serving(job), lookups)]


def drafting_form(job: Job, settings: EvaluateSettings, drafting: Drafting) -> Form:
    """The served model with one drafting."""
    return _form(f"{TARGET} with {drafting.label}", job.inputs["target"], settings, drafting, job)


def drafter_serving(job: Job) -> DrafterServing | None:
    """How servers run the job's drafter; None without one."""
    drafter = job.inputs.get("speculator")
    architecture = architecture_of(json.loads((drafter / "config.json").read_text())) if drafter is not None else None
    return None if architecture is None else architecture.serving


def _draftings(settings: EvaluateSettings, serving: DrafterServing | None, lookups: Mapping[str, int]) -> list[Drafting]:
    """The draftings besides none and the drafter with its own K, the simplest first."""
    asked, kind, longest = settings.asked_server.drafting, settings.asked_server.kind, settings.num_speculative_tokens
    draftings = []
    for method in asked.methods:
        if method in LOOKUPS:
            best = [lookups.get(method, longest)]
            lengths = (asked.num_speculative_tokens or best) if runs_drafter(kind, LOOKUPS[method]) else []
        elif serving is None or not runs_drafter(kind, serving):
            lengths = []
        else:
            lengths = [each for each in asked.num_speculative_tokens or [(longest + 1) // 2] if each < longest]
        draftings += [Drafting(method=method, num_speculative_tokens=each) for each in lengths]
    return sorted(set(draftings), key=lambda each: each.simplicity)


def _form(
    name: str, directory: Path, settings: EvaluateSettings, drafting: Drafting = NO_DRAFTING, job: Job | None = None
) -> Form:
    drafter = job.inputs.get("speculator") if job is not None else None
    words = words_of(
        settings.asked_server.kind,
        str(directory),
        NAME,
        str(drafter) if drafter else None,
        drafter_serving(job) if job is not None else None,
        settings.num_speculative_tokens,
        drafting,
    )
    return Form(name, directory, [*words, *settings.asked_server.arguments], drafting)


def held_out_texts(job: Job, settings: EvaluateSettings) -> list[Document]:
    """Held-out rows with an answer, in a seeded order; of a row with branches, its trunk."""
    read, _ = read_documents(job.inputs["dataset"], "test", load_tokenizer(job.inputs["target"]), settings.max_length)
    trunks = []
    for document in sorted(read, key=lambda each: each.row_id):
        length = document.segments[0].length
        trunk = Document(document.row_id, document.input_ids[:length], document.targets[:length])
        if trunk.target_tokens:
            trunks.append(trunk)
    random.Random(settings.seed).shuffle(trunks)
    return trunks


def serve(job: Job, settings: EvaluateSettings, form: Form, texts: Sequence[Document], progress: Progress) -> dict[str, Any]:
    """Serves a form and asks it. Log-probabilities are asked of the target alone. Raises ServerFailed and NotRunnable as
    `running_server` does, and ModelError for a server that answers wrongly or ends."""
    asked = settings.asked_server
    chosen = dtype_words(asked.kind, form.directory, form.words)
    if chosen:
        progress.event("note", message=f"evaluate: {SERVES_FLOAT32}")
    command = [*program_of(asked.kind, asked.python), *form.words, *chosen]
    progress.report(_phase(form, settings), 0, 4, "parts")
    with (
        running_server(
            command,
            log=job.output / LOG,
            start_s=asked.start_s,
            environment=server_environment(),
            check=progress.stop_if_requested,
        ) as server,
        ServedModel(server.url, model=NAME, timeout_s=asked.timeout_s, through_proxy=False) as client,
    ):
        with _explained(asked.kind, server):
            room = _room(settings, form, client)
        prompts = _prompts(job, settings, room - asked.max_new_tokens)
        compared = texts_within(texts, room) if form.name == TARGET else []
        with _explained(asked.kind, server):
            return {
                **_asked(settings, form, client, compared, prompts, _samplings(job, prompts), progress),
                "started_s": server.started_s,
                "memory_mb": server.memory_mb(),
            }


def texts_within(texts: Sequence[Document], room: int) -> list[Document]:
    """The first TEXTS rows that leave a token of `room`, up to TEXT_TOKENS tokens in all."""
    fitting = [text for text in texts if len(text) < room][:TEXTS]
    return first_documents(fitting, TEXT_TOKENS)


def _room(settings: EvaluateSettings, form: Form, client: ServedModel) -> int:
    """Most tokens of a prompt and its answer."""
    positions = read_config(form.directory).get("max_position_embeddings")
    return min(limit for limit in (settings.max_length, client.longest, positions) if limit)


def _prompts(job: Job, settings: EvaluateSettings, room: int) -> list[Prompt]:
    read = read_prompts(job.inputs["dataset"], "test", load_tokenizer(job.inputs["target"]))
    fitting = [prompt for prompt in read if 0 < len(prompt.ids) <= room]
    if not fitting:
        raise ModelError(
            f"none of {len(read)} test prompts fits into the {max(room, 0)} tokens that the server leaves to a "
            "prompt: raise its longest context in evaluation.server.arguments, or lower "
            "evaluation.server.max_new_tokens"
        )
    return choose_prompts(fitting, settings.asked_server.prompts, settings.seed)


def _asked(
    settings: EvaluateSettings,
    form: Form,
    client: ServedModel,
    texts: Sequence[Document],
    prompts: list[Prompt],
    samplings: Sequence[Sampling],
    progress: Progress,
) -> dict[str, Any]:
    """samplings: of each prompt, as its request was logged."""
    asked, phase = settings.asked_server, _phase(form, settings)
    progress.report(phase, 1, 4, "parts")
    logprobs = {}
    for text in texts:
        progress.stop_if_requested()
        logprobs[text.row_id] = client.log_probabilities(text.input_ids.tolist())
    progress.report(phase, 2, 4, "parts")
    shared: dict[str, Any] = {
        "max_tokens": asked.max_new_tokens,
        "temperature": 0.0,
        "check": progress.stop_if_requested,
        **NEUTRAL,
    }
    greedy = measure_served(client, [prompt.ids for prompt in prompts], concurrency=max(asked.concurrencies), **shared)
    progress.report(phase, 3, 4, "parts")
    rates, tau = _rates(asked, client, prompts, [{}] * len(prompts), shared)
    as_logged = [sampling.as_request() for sampling in samplings]
    sampled = form.name != REFERENCE and any(sampling != Sampling(temperature=0.0) for sampling in samplings)
    logged, logged_tau = _rates(asked, client, prompts, as_logged, shared) if sampled else (rates, tau)
    progress.report(phase, 4, 4, "parts")
    return {
        "version": client.version,
        "logprobs": logprobs,
        "tokens_per_second": rates,
        "as_logged": {"rates": logged, "tau": logged_tau},
        "drafting": form.drafting.model_dump(mode="json"),
        "tau": greedy.acceptance.tau if greedy.acceptance is not None and greedy.acceptance.drafts else None,
        "replies": [
            {"row_id": prompt.row_id, "prompt": prompt.ids, "tokens": reply.token_ids, "text": reply.text}
            for prompt, reply in zip(prompts, greedy.replies, strict=True)
        ],
    }


def _rates(
    asked: ServerSettings,
    client: ServedModel,
    prompts: Sequence[Prompt],
    fields: Sequence[Mapping[str, Any]],
    shared: Mapping[str, Any],
) -> tuple[dict[str, dict[str, float]], float | None]:
    """tokens/s and latency (median, and the tail as p99_s) by concurrency, and the acceptance length; None if nothing was
    drafted. fields: of each request."""
    rates, drafts, accepted = {}, 0, 0
    for concurrency in asked.concurrencies:
        several = [[(number * concurrency + place) % len(prompts) for place in range(concurrency)] for number in range(PASSES)]
        runs = [
            measure_served(
                client,
                [prompts[place].ids for place in places],
                concurrency=concurrency,
                ignore_eos=True,
                each=[fields[place] for place in places],
                **shared,
            )
            for places in several
        ]
        speeds = [each.tokens_per_second for each in runs]
        latencies = [reply.latency_s for each in runs for reply in each.replies]
        rates[str(concurrency)] = {
            "median": median(speeds),
            "lowest": min(speeds),
            "highest": max(speeds),
            "p50_s": median(latencies),
            "p99_s": tail_s(latencies),
        }
        counted = [each.acceptance for each in runs if each.acceptance is not None]
        drafts, accepted = drafts + sum(each.drafts for each in counted), accepted + sum(each.accepted for each in counted)
    return rates, tau_of(drafts, accepted) if drafts else None


def _samplings(job: Job, prompts: Sequence[Prompt]) -> list[Sampling]:
    """Sampling of each prompt as its request was logged, with what the decoder applies."""
    groups = modes(job.inputs["target"], job.inputs.get("served"), prompts, [])[-1].groups
    sampling_of = {prompt.row_id: sampling for sampling, group in groups for prompt in group}
    return [sampling_of[prompt.row_id] for prompt in prompts]


def _phase(form: Form, settings: EvaluateSettings) -> str:
    return f"{form.name} in {settings.asked_server.kind}"


@contextmanager
def _explained(kind: str, server: RunningServer) -> Iterator[None]:
    """Adds to a failed request whether the server has ended. No line of its log is quoted: it may hold what was asked."""
    try:
        yield
    except ModelError as error:
        said = "ended while it was asked" if server.ends_within(ENDING_S) else f"did not answer as it should: {error}"
        raise ModelError(f"{kind} loaded it and {said} ({LOG} in the report's folder has what it wrote)") from error


ABOVE = 5


def tail_quantile(requests: int) -> float:
    """The quantile, from 0.5 to 0.99, that so many requests can tell. requests: at least 1."""
    return min(0.99, max(0.5, 1 - ABOVE / requests))


def tail_s(latencies: Sequence[float]) -> float:
    """The latency at that quantile, in the unit of `latencies`. Raises ValueError without any."""
    if not latencies:
        raise ValueError("there are no latencies, so they have no tail")
    return float(np.quantile(latencies, tail_quantile(len(latencies))))
