"""Operation `rft`: reinforcement fine-tuning of a model on its own answers to prompts, as a grader judges them.

Job inputs: `model` (a model directory), `prompts` (a dataset rl_prompts), `reward_model` where the grader asks for one. Output
as that of `sft`: the model with its tokenizer and chat template, and metrics.jsonl; rollouts.parquet has a row for each answer.

With `environment` or `agent` an answer is an attempt of several turns, which that grades.

On a mesh the first process asks, grades, keeps and measures; the others sample their share and learn theirs.

Held-out prompts (the validation split, or the test split where that is empty) are answered before the first step, during the
training and after the last step; the metrics name the first ones `before_`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from torch import nn
from transformers import PreTrainedTokenizerBase

from model_ops.answers import ROLLOUT_ROWS, GradedAnswers, RolloutLog, RolloutMaker, SampledPrompt, read_sampled_prompts
from model_ops.documents import context_of, joined_tokens
from model_ops.environments import (
    TASKSET_CHILD,
    AgentRollouts,
    EnvironmentProcesses,
    EnvironmentRollouts,
    PolicySessions,
    SessionServer,
)
from model_ops.files import bare, renamed_when_complete
from model_ops.graders import Grader, GraderSettings
from model_ops.jobs import Job, ModelError, Progress
from model_ops.machine import concrete
from model_ops.models import add_end_of_text, end_of_text_ids, load_tokenizer, read_config, refuse_misfit
from model_ops.operations.rollout_engine import open_engine, open_processes
from model_ops.parallel import World
from model_ops.reinforcement import (
    LANES,
    TASKSETS,
    AsynchronousPlan,
    HeldOutRollouts,
    PolicyLoss,
    RftSettings,
    RolloutPlan,
    variance_shares,
)
from model_ops.rendering import end_of_turn_ids
from model_ops.rewards import RewardModel
from model_ops.tensors import use_memory_efficient_layers
from model_ops.training import load_to_tune, save_tuned, train, without_dropout

RISE = 0.1
"""Of the mean grade, from which something was learnt."""
PLEASES = (
    "grades rose in training, and no more held-out answers pass than before, so the model may have learnt to please its "
    "grader: read the best rollouts, and give the grader a part that sees what it misses"
)
RULED = (
    "the part {part} holds {share:z.0%} of the variance of grades, and no more held-out answers pass than before: little but "
    "that part is learnt; lower its weight, or make the other parts tell answers apart"
)
NOTHING = (
    "no answer was learnt, so the weights are those it began with: of {rollouts} answers {cut_rollouts} were cut at "
    "max_new_tokens, {ungraded_rollouts} had no grade, and in {equal_groups} of {asked_prompts} groups all grades were equal; "
    "raise max_new_tokens, or choose prompts that the model answers well sometimes"
)
ONE_GRADE = (
    "no answer was learnt, so the weights are those it began with: {who} gave {grade:g} to all {graded} answers, and equal "
    "grades teach nothing; see whether it tells good answers from bad ones, or choose {prompts}"
)
MOST_OF_THE_VARIANCE = 0.8
"""Share above which one part of a grader rules what is learnt."""
SECONDS = {"environment": 10.0, "agent": 300.0}
"""Most seconds of one call of an environment, and of an agent's attempt."""
VALIDATIONS = 4
"""Measurements of held-out prompts during a training, the last one included."""


def run(job: Job, progress: Progress) -> dict[str, float | int | str]:
    """Trains and saves the model; returns metrics. Raises ModelError for a bad model, dataset or grader."""
    with ExitStack() as opened:
        return _run(job, progress, opened)


def _run(job: Job, progress: Progress, opened: ExitStack) -> dict[str, float | int | str]:
    settings, base, dataset = job.settings_as(RftSettings), job.input("model"), job.input("prompts")
    world = World.start(settings.mesh)
    settings = concrete(settings, world.device)
    tokenizer = load_tokenizer(base)
    refuse_misfit(base, tokenizer)
    room = min(settings.max_length, context_of(read_config(base)) or settings.max_length) - settings.max_new_tokens
    if room < 1:
        raise ModelError(
            f"max_new_tokens {settings.max_new_tokens} leaves no room for a prompt in {room + settings.max_new_tokens} tokens: "
            "lower it, or raise max_length up to the positions of the model"
        )
    prompts, counts = read_sampled_prompts(dataset, tokenizer, room)
    held_out = held_out_prompts(dataset, tokenizer, room, settings.held_out_prompts)
    model, numbers = load_to_tune(base, settings, world.loading_device)
    world.place(model, settings.precision)
    use_memory_efficient_layers(model)
    grades = world.leads and "reward_model" in job.inputs
    reward_model = RewardModel.load(job.input("reward_model"), model.device) if grades else None

    acts = acting_makers(settings, tokenizer, room, opened, progress) if world.leads else None

    graders, work = list[Grader](), job.output / ".work"

    log = opened.enter_context(RolloutLog(work / ("rollouts.jsonl" if world.leads else f"rollouts-{world.rank}.jsonl")))

    def maker(grader: GraderSettings | None, key: str, answers: int, attempts: RolloutLog | None) -> RolloutMaker:
        if acts is not None:
            return acts(attempts, answers)
        graders.append(ready := Grader(grader, f"rft.{key}", reward_model))
        training = partial(settings.trainer_state, rows=len(prompts), rows_per_step=settings.prompts_per_step)
        return GradedAnswers(opened.enter_context(ready) if world.leads else ready, tokenizer, answers, training, progress)

    eos_ids = end_of_turn_ids(tokenizer) or end_of_text_ids(base)
    engine = open_engine(settings, model, tokenizer, base, eos_ids, work, opened, progress, world)
    loss = PolicyLoss(
        settings.loss, settings.given, settings.corrected_by, settings.kl, settings.temperature, settings.max_staleness
    )
    lanes = LANES if settings.max_staleness and acts is None else 1
    makers = [maker(settings.grader, "grader", settings.answers, log) for _ in range(lanes)]
    shared = {
        "log": log,
        "model": model,
        "loss": loss,
        "settings": settings,
        "world": world,
        "shares": joined_tokens(base, settings) > 0,
        "longest": room if settings.grader is None else settings.max_new_tokens,
        "progress": progress,
    }
    if settings.max_staleness:
        engines = open_processes(settings, model, base, eos_ids, prompts[0].tokens, work, opened)
        asynchronous = AsynchronousPlan(prompts, makers, engines, **shared)
        opened.callback(asynchronous.close)
        plan: RolloutPlan = asynchronous
        if acts is not None:  # held-out attempts are made by another thread, with processes of their own
            acts = acting_makers(settings, tokenizer, room, opened, progress)
    else:
        plan = RolloutPlan(prompts, makers[0], engine, **shared)
    validate = None
    if held_out:
        grader, key = held_out_grader(settings, held_out)
        made = maker(grader, key, settings.held_out_answers, None)
        validate = HeldOutRollouts(held_out, made, engine, settings.passing_grade, settings.seed, lambda: plan.done)
    for note in dict.fromkeys(note for each in graders for note in each.notes):
        progress.event("note", message=note)
    before = world.conduct(lambda: measured_before(validate, work / "before.json", model, progress))
    measured = None if validate is None else partial(world.conduct, validate)
    every = math.ceil(len(plan) / VALIDATIONS)
    with without_dropout(model, progress, "rft"):
        result = train(model, plan, loss, settings, work, progress, "rft", validate=measured, validate_every=every, world=world)
    add_end_of_text(model, end_of_turn_ids(tokenizer))
    numbers |= save_tuned(model, tokenizer, base, settings, job.output)
    if not world.leads:
        return {}
    with (
        renamed_when_complete(job.output / "rollouts.parquet") as temporary,
        pq.ParquetWriter(temporary, bare(ROLLOUT_ROWS), compression="zstd") as writer,
    ):
        for table in plan.tables(tokenizer):
            writer.write_table(table)
    whole, shares = plan.counts(), variance_shares(plan.last_grades(), settings.grader) if settings.grader else {}
    if not whole["learnt_rollouts"]:
        progress.event("warning", message=f"rft: {nothing_learnt(whole, plan.values(), settings)}")
    if pleases_its_grader(whole, before, result.validation):
        progress.event("warning", message=f"rft: {PLEASES}")
    if (part := ruling_part(shares, before, result.validation)) is not None:
        progress.event("warning", message=f"rft: {RULED.format(part=part, share=shares[part])}")
    whole |= {f"variance_of_{name}": share for name, share in shares.items()}
    return result.metrics({**counts, **before, **whole, **numbers, "prompts": len(prompts)})


def nothing_learnt(counts: Mapping[str, float], values: Sequence[float], settings: RftSettings) -> str:
    """Why no answer was learnt. values: all grades that were given."""
    if len(set(values)) != 1:
        return NOTHING.format_map(counts)
    if settings.grader is None:
        who = (
            f"`{'environment' if settings.environment else 'agent'}` {Path(settings.environment or settings.agent or '').name}"
        )
    else:
        who = f"`grader` {' and '.join(Path(part.by).name for part in settings.grader.parts.values())}"
    prompts = "harder prompts" if values[0] >= settings.passing_grade else "prompts that the model answers well sometimes"
    if values[0] < settings.passing_grade and counts["cut_rollouts"]:
        prompts += f"; {counts['cut_rollouts']} answers were cut: raise max_new_tokens if they lack their end"
    return ONE_GRADE.format(who=who, grade=values[0], graded=len(values), prompts=prompts)


def pleases_its_grader(counts: Mapping[str, float], before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Whether the reward rose by more than RISE, and the share of held-out answers that pass did not."""
    return counts["last_grade"] - counts["first_grade"] > RISE and is_flat(before, after)


def is_flat(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Whether held-out answers were measured, and no more of them pass than before the training."""
    return bool(before) and after["validation_pass_rate"] <= before["before_validation_pass_rate"]


def ruling_part(shares: Mapping[str, float], before: Mapping[str, float], after: Mapping[str, float]) -> str | None:
    """The part with more than MOST_OF_THE_VARIANCE of the variance of grades, where held-out answers are flat. shares: of
    variance_shares."""
    most = max(shares, key=shares.__getitem__, default=None)
    return most if most is not None and shares[most] > MOST_OF_THE_VARIANCE and is_flat(before, after) else None


def acting_makers(
    settings: RftSettings, tokenizer: PreTrainedTokenizerBase, room: int, opened: ExitStack, progress: Progress
) -> Callable[[RolloutLog | None, int], RolloutMaker] | None:
    """(log of attempts, answers to each prompt) -> a maker of attempts of several turns; None for single answers."""
    kind = "environment" if settings.environment else "agent"
    if (named := settings.environment or settings.agent) is None:
        return None
    file, _, name = (f"{TASKSET_CHILD}:play" if named == TASKSETS else named).rpartition(":")
    seconds = settings.seconds or SECONDS[kind]
    processes = opened.enter_context(EnvironmentProcesses(Path(file), name, seconds, kind, settings.python))
    if kind == "environment":
        limits = {"max_turns": settings.max_turns, "longest_context": room}
        return lambda log, answers: EnvironmentRollouts(processes, tokenizer, log, progress, answers=answers, **limits)
    sessions = PolicySessions(tokenizer, room, settings.max_turns)
    server = opened.enter_context(SessionServer(sessions))
    return lambda log, answers: AgentRollouts(processes, sessions, server.base_url, log, progress, answers=answers)


def held_out_prompts(dataset: Path, tokenizer: PreTrainedTokenizerBase, room: int, most: int) -> list[SampledPrompt]:
    """The first prompts of the validation split, or of the test split where that has none."""
    for split in ("validation", "test") if most else ():
        path = dataset / f"{split}.parquet"
        if path.exists() and pq.read_metadata(path).num_rows:
            return read_sampled_prompts(dataset, tokenizer, room, split)[0][:most]
    return []


def held_out_grader(settings: RftSettings, prompts: list[SampledPrompt]) -> tuple[GraderSettings | None, str]:
    """(who grades held-out answers, None for the environment; its key). Where every row brings a verifier, that grades,
    whatever rewards training."""
    if settings.held_out_grader is not None or settings.grader is None:
        return settings.held_out_grader, "held_out_grader"
    if all("kind" in prompt.columns for prompt in prompts):
        return GraderSettings.model_validate("verifier"), "held_out_grader"
    return settings.grader, "grader"


def measured_before(validate: HeldOutRollouts | None, path: Path, model: nn.Module, progress: Progress) -> dict[str, float]:
    """The held-out numbers of the model before its training, under names with `before_`; kept for a run that continues."""
    if validate is None:
        return {}
    if not path.exists():
        progress.event("note", message="rft: held-out prompts are answered before the first step")
        model.eval()
        found = {f"before_{name}": value for name, value in validate().items()}
        with renamed_when_complete(path) as temporary:
            temporary.write_text(json.dumps(found))
    return json.loads(path.read_text())
