"""Acceptance of every drafter over held-out prompts, at each temperature and as the traffic is sampled.

Lookups draft for free, but a server verifies every draft: tau grows with the length K until matches end, so `search` takes, on
the validation split, the shortest K that reaches NEARLY_BEST of the best tau."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.completions import Sampling
from model_ops.decoding import Drafter, ModelDrafter, Prompt, Runner, choose_prompts, load_runner, read_prompts
from model_ops.drafting import AcceptanceRow, AcceptanceRun, baselines, measure, paired_gain, replay, summarize, tau_of
from model_ops.evaluation.measurement import AS_LOGGED, CHAMPION, OVER_PROMPTS, Findings
from model_ops.evaluation.own_answers import OwnModel
from model_ops.evaluation.row_tables import ACCEPTANCE_ROWS, finished
from model_ops.evaluation.served_forms import Mode, modes
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.files import bare
from model_ops.jobs import Job, ModelError, Progress
from model_ops.speculators import DRAFT_MODEL, load_draft_model

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24)
"""Searched draft lengths; 24 is vLLM's suffix_decoding_max_tree_depth."""
NEARLY_BEST = 0.99


@dataclass(frozen=True)
class LookupLength:
    """The draft length chosen for prompt lookup."""

    num_speculative_tokens: int
    """The chosen K."""
    tau: float | None
    """Acceptance length at K, over the searched answers; None without any."""
    answers: int
    taus: dict[str, float] = field(default_factory=dict)
    """Acceptance length by K, as text."""


def search(
    past_answers: Sequence[Sequence[int]], texts: Sequence[tuple[Sequence[int], Sequence[int]]], otherwise: int
) -> dict[str, LookupLength]:
    """The best length of each lookup drafter. texts: (prompt, answer) token ids of the target. otherwise: K without texts."""
    if not any(answer for _, answer in texts):
        return {name: LookupLength(otherwise, None, 0) for name in baselines()}
    taus: dict[str, dict[int, float]] = {}
    for length in LENGTHS:
        for name, drafter in baselines(past_answers).items():
            counts = [replay(drafter.open_index(prompt), answer, [], length) for prompt, answer in texts]
            forwards, accepted = sum(each.forwards for each in counts), sum(sum(each.accepted_at) for each in counts)
            taus.setdefault(name, {})[length] = tau_of(forwards, accepted)
    lengths = {}
    for name, by_length in taus.items():
        best = next(length for length in LENGTHS if by_length[length] >= NEARLY_BEST * max(by_length.values()))
        as_text = {str(length): tau for length, tau in by_length.items()}
        lengths[name] = LookupLength(best, by_length[best], len(texts), as_text)
    return lengths


SEARCHED_PROMPTS = 64
"""Most validation prompts that are answered for the search of lookup lengths, if the job has no answers to them."""


@dataclass
class Acceptances(Findings):
    """Acceptance of every drafter."""

    summaries: list[dict[str, Any]] = field(default_factory=list)
    """One summary for each drafter and sampling."""
    identical: dict[str, float] = field(default_factory=dict)
    tokens_per_second: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    lookups: dict[str, LookupLength] = field(default_factory=dict)
    """Chosen lengths of prompt lookup."""


def acceptances(job: Job, settings: EvaluateSettings, progress: Progress) -> Acceptances:
    """Measures every drafter. Without a usable prompt nothing is measured, and `not_measured` says why."""
    target, result = job.inputs["target"], Acceptances()
    result.counts = {"prompts": 0, "prompts_asked": settings.prompts, "prompts_too_long": 0}
    try:
        model = OwnModel(target)
        prompts = read_prompts(job.inputs["dataset"], "test", model.tokenizer)
        room = min(settings.max_length, model.runner.max_positions - settings.max_new_tokens)
    except ModelError as error:
        return _without(result, job, str(error))
    fitting = [prompt for prompt in prompts if 0 < len(prompt.ids) <= room]
    result.counts["prompts_too_long"] = len(prompts) - len(fitting)
    if not fitting:
        dataset = job.inputs["dataset"]
        return _without(
            result,
            job,
            f"the {len(prompts)} test prompts of {dataset} are all longer than {room} tokens: raise "
            "max_length or lower max_new_tokens"
            if prompts
            else f"{dataset} holds no test row with a prompt and an answer",
        )
    chosen = choose_prompts(fitting, settings.prompts, settings.seed)
    past = past_answers(job)
    trained, champion = trained_drafters(job, model.runner), _champion(job, settings, model.runner, result)
    result.counts |= {"prompts": len(chosen), "past_answers": len(past)}
    result.lookups = _lookup_lengths(job, settings, model, past, room)
    measured: dict[str, list[AcceptanceRow]] = {}
    every = modes(target, job.inputs.get("served"), chosen, settings.temperatures)
    logged = next(mode.same_as or mode.label for mode in every if mode.label == AS_LOGGED)
    for done, mode in enumerate(every):
        progress.stop_if_requested()
        progress.report("acceptance", done, len(every), "ways of sampling")
        if mode.same_as is not None:
            rows = [replace(row, sampling=mode.label) for row in measured[mode.same_as]]
        else:
            drafters = {**baselines(past), **(champion.drafters if mode.label == logged else {}), **trained}
            lengths = {**{name: each.num_speculative_tokens for name, each in result.lookups.items()}, **champion.lengths}
            of_mode = _measured(job, settings, model, drafters, lengths, mode)
            rows = of_mode.rows
            result.identical.update({f"{name}_{mode.key}": share for name, share in of_mode.identical.items()})
            result.tokens_per_second.update({f"{name}_{mode.key}": rate for name, rate in of_mode.tokens_per_second.items()})
        measured[mode.label] = rows
        result.left_out |= mode.left_out
        names = ["none", *result.lookups, *(champion.drafters if mode.label in (logged, AS_LOGGED) else []), *trained]
        _summarise(result, settings, mode, rows, names, list(trained))
    progress.report("acceptance", len(every), len(every), "ways of sampling")
    written = [asdict(row) for rows in measured.values() for row in rows]
    pq.write_table(pa.Table.from_pylist(written, schema=bare(ACCEPTANCE_ROWS)), job.output / "acceptance.parquet")
    return result


def trained_drafters(job: Job, runner: Runner) -> dict[str, Drafter]:
    """The speculator, under its architecture's name and sampling as in servers, and the small language model `draft_model`,
    which is called `draft_model_untrained` if the speculator has that architecture."""
    result: dict[str, Drafter] = {}
    if "speculator" in job.inputs:
        model = load_draft_model(job.inputs["speculator"], runner.dtype).to(runner.device).attach(runner)
        result[model.kind] = model.drafter()
    if "draft_model" in job.inputs:
        name = DRAFT_MODEL.untrained if DRAFT_MODEL.name in result else DRAFT_MODEL.name
        result[name] = ModelDrafter(load_runner(job.inputs["draft_model"]), runner.embedding.shape[0])
    return result


@dataclass(frozen=True)
class _Champion:
    """The drafter of the release that is served now, by name, and its draft length; empty without one."""

    drafters: dict[str, Drafter] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)


def _champion(job: Job, settings: EvaluateSettings, runner: Runner, result: Acceptances) -> _Champion:
    """At the draft length of the evaluation, or the longest that it was trained for. `result` says why it cannot be loaded."""
    if "champion_speculator" not in job.inputs:
        return _Champion()
    try:
        model = load_draft_model(job.inputs["champion_speculator"], runner.dtype).to(runner.device).attach(runner)
    except ModelError as error:
        result.not_measured[f"acceptance of {CHAMPION}"] = str(error)
        return _Champion()
    length = min(settings.num_speculative_tokens, model.longest_chain or settings.num_speculative_tokens)
    return _Champion({CHAMPION: model.drafter()}, {CHAMPION: length})


def past_answers(job: Job) -> list[list[int]]:
    """The target's answers to training prompts, for the cache of suffix decoding; [] if the job has no answers."""
    if "answers" not in job.inputs:
        return []
    path = job.inputs["answers"] / "train.parquet"
    try:
        return pq.read_table(path, columns=["answer_token_ids"])["answer_token_ids"].to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ModelError(f"{path} holds no answer_token_ids: give as `answers` a directory that `generate` wrote") from error


def _without(result: Acceptances, job: Job, why: str) -> Acceptances:
    pq.write_table(bare(ACCEPTANCE_ROWS).empty_table(), job.output / "acceptance.parquet")
    result.not_measured["acceptance"] = why
    return result


def _lookup_lengths(
    job: Job, settings: EvaluateSettings, model: OwnModel, past: Sequence[Sequence[int]], room: int
) -> dict[str, LookupLength]:
    """The best lengths of the lookup drafters, over the target's answers to validation prompts."""

    def searched() -> dict[str, Any]:
        path = job.inputs["answers"] / "validation.parquet" if "answers" in job.inputs else None
        if path is not None and path.exists():
            columns = ["prompt_token_ids", "answer_token_ids"]
            rows = pq.read_table(path, columns=columns).slice(0, settings.prompts).to_pylist()
            texts = [(row[columns[0]], row[columns[1]]) for row in rows]
        else:
            texts = _answered(job, settings, model, room)
        return {name: asdict(each) for name, each in search(past, texts, settings.num_speculative_tokens).items()}

    return {name: LookupLength(**each) for name, each in finished(job, "lookup-lengths", searched).items()}


def _answered(job: Job, settings: EvaluateSettings, model: OwnModel, room: int) -> list[tuple[list[int], list[int]]]:
    """Validation prompts with answers sampled by the server's defaults; [] if the dataset has no validation split."""
    dataset = job.inputs["dataset"]
    if not (dataset / "validation.parquet").exists():
        return []
    prompts = [prompt for prompt in read_prompts(dataset, "validation", model.tokenizer) if 0 < len(prompt.ids) <= room]
    chosen = choose_prompts(prompts, min(settings.prompts, SEARCHED_PROMPTS), settings.seed)
    pairs = []
    for sampling, group in modes(job.inputs["target"], None, chosen, [])[-1].groups:
        asked = {each.row_id: each.ids for each in group}
        answers = model.answers(asked, sampling, settings.max_new_tokens, settings.batch_size, settings.seed)
        pairs += [(asked[name], answer.tokens) for name, answer in answers.items()]
    return pairs


def _measured(
    job: Job, settings: EvaluateSettings, model: OwnModel, drafters: dict[str, Drafter], lengths: Mapping[str, int], mode: Mode
) -> AcceptanceRun:
    """All groups of a mode. tokens/s and identical texts are means over the groups, weighted by their prompts. lengths: number
    of drafted tokens of drafters for which it differs from the settings'."""
    total = sum(len(group) for _, group in mode.groups)
    together = AcceptanceRun([], {}, {})
    for number, (sampling, group) in enumerate(mode.groups):

        def run(sampling: Sampling = sampling, group: Sequence[Prompt] = group) -> dict[str, Any]:
            return asdict(
                measure(
                    model.runner,
                    drafters,
                    group,
                    eos_ids=model.eos_ids,
                    temperature=sampling.temperature,
                    truncation=sampling.truncation,
                    penalties=sampling.penalties,
                    max_new_tokens=settings.max_new_tokens,
                    lengths=lengths,
                    num_speculative_tokens=settings.num_speculative_tokens,
                    batch_size=settings.batch_size,
                    seed=settings.seed,
                )
            )

        part = finished(job, f"acceptance-{mode.key}-{number}", run)
        together.rows.extend(replace(AcceptanceRow(**row), sampling=mode.label) for row in part["rows"])
        for into, of in ((together.tokens_per_second, "tokens_per_second"), (together.identical, "identical")):
            for name, value in part[of].items():
                into[name] = into.get(name, 0.0) + value * len(group) / total
    if any(sampling.temperature > 0 for sampling, _ in mode.groups):
        together.identical.clear()  # a share of equal texts is defined for greedy answers only
    return together


def _summarise(
    result: Acceptances,
    settings: EvaluateSettings,
    mode: Mode,
    rows: list[AcceptanceRow],
    names: Sequence[str],
    trained: Sequence[str],
) -> None:
    """Adds the summaries of a mode, acceptance lengths, and each trained drafter's gain over the best lookup and over the
    champion's drafter."""
    by_name = {name: [row for row in rows if row.drafter == name] for name in names}
    taus = {}
    for name, of_it in by_name.items():
        summary = {
            "drafter": name,
            "temperature": mode.temperature,
            "sampling": mode.label,
            "num_speculative_tokens": of_it[0].num_speculative_tokens,
            **summarize(of_it),
        }
        result.summaries.append(summary)
        taus[name] = summary["tau"]
        if name != "none":
            about = {"of": name, "sampling": mode.label, "method": OVER_PROMPTS}
            ends = summary["tau_low"], summary["tau_high"]
            result.measure("acceptance_length", taus[name], ends, len(of_it), "prompts", "tokens per forward", **about)
    # chosen on the validation split, where there is one, so that the choice does not favour the lookup on the test prompts
    best = max(result.lookups, key=lambda name: (result.lookups[name].tau or 0.0, taus[name]))
    for name in trained:
        for other in (best, *(each for each in names if each == CHAMPION)):
            gain = paired_gain([by_name[other]], [by_name[name]])
            about = {"of": name, "against": other, "sampling": mode.label, "method": "paired " + OVER_PROMPTS}
            result.measure("acceptance_gain", gain.share, (gain.low, gain.high), gain.prompts, "prompts", "share", **about)
