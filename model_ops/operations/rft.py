"""Operation `rft`: reinforcement fine-tuning of a model on its own answers to prompts, as a grader judges them.

Job inputs: `model` (a model directory), `prompts` (a dataset rl_prompts), `reward_model` where the grader asks for one. Output
as that of `sft`, and rollouts.parquet with a row for each answer. On a mesh the first process asks, grades and measures; the
others sample and learn their share. Held-out prompts are answered before the first step (metrics `before_`), during and after.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from torch import nn
from transformers import PreTrainedTokenizerBase

from model_ops.answers import (
    ROLLOUT_ROWS,
    Engine,
    GradedAnswers,
    InProcessEngine,
    RolloutLog,
    RolloutMaker,
    SampledPrompt,
    read_sampled_prompts,
    sampled_text,
)
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
from model_ops.jobs import Job, ModelError, Progress, filled
from model_ops.machine import concrete
from model_ops.models import add_end_of_text, end_of_text_ids, load_model, load_tokenizer, read_config, refuse_misfit
from model_ops.operations.rollout_engine import open_engine, open_processes
from model_ops.parallel import World
from model_ops.reinforcement import (
    LANES,
    TASKSETS,
    HeldOutRollouts,
    PolicyLoss,
    RftSettings,
    RolloutPlan,
    doubts,
    grades_of_chunks,
    run_counts,
    staleness_counts,
    variance_shares,
)
from model_ops.rendering import end_of_turn_ids
from model_ops.rewards import RewardModel
from model_ops.tensors import use_memory_efficient_layers
from model_ops.training import load_to_tune, save_tuned, train, without_dropout

RISE = 0.1
"""Of the mean grade, from which something was learnt."""
WARN_REWARD_HACKING = (
    "grades rose in training, and no more held-out answers pass than before, so the model may have learnt to please its "
    "grader: read the best rollouts, and give the grader a part that sees what it misses"
)
WARN_ONE_PART_DOMINATES = (
    "the part {part} holds {share:z.0%} of the variance of grades, and no more held-out answers pass than before: little but "
    "that part is learnt; lower its weight, or make the other parts tell answers apart"
)
WARN_NOTHING_LEARNT = (
    "no answer was learnt, so the weights are those it began with: of {rollouts} answers {cut_rollouts} were cut at "
    "max_new_tokens, {ungraded_rollouts} had no grade, and in {equal_groups} of {asked_prompts} groups all grades were equal; "
    "raise max_new_tokens, or choose prompts that the model answers well sometimes"
)
WARN_ONE_GRADE_FOR_ALL = (
    "no answer was learnt, so the weights are those it began with: {who} gave {grade:g} to all {graded} answers, and equal "
    "grades teach nothing; see whether it tells good answers from bad ones, or choose {prompts}"
)
MOST_OF_THE_VARIANCE = 0.8
"""Share above which one part of a grader dominates what is learnt."""
SECONDS = {"environment": 10.0, "agent": 300.0}
"""Most seconds of one call of an environment, and of an agent's attempt."""
VALIDATIONS = 4
"""Measurements of held-out prompts during a training, the last one included."""


def run(job: Job, progress: Progress) -> dict[str, float | int | str]:
    """Trains and saves the model; returns metrics. Raises ModelError for a bad model, dataset or grader."""
    with ExitStack() as opened:
        return _run(job, progress, opened)


def _run(job: Job, progress: Progress, opened: ExitStack) -> dict[str, float | int | str]:
    settings, base, work = job.settings_as(RftSettings), job.input("model"), job.output / ".work"
    world = World.start(settings.mesh)
    settings = concrete(settings, world.device)
    tokenizer = load_tokenizer(base)
    refuse_misfit(base, tokenizer)
    room = room_for_prompts(settings, base)
    prompts, counts = read_sampled_prompts(job.input("prompts"), tokenizer, room)
    held_out = held_out_prompts(job.input("prompts"), tokenizer, room, settings.held_out_prompts)
    model, numbers = load_to_tune(base, settings, world.loading_device)
    world.place(model, settings.precision)
    use_memory_efficient_layers(model)

    scorer = job.inputs.get("reward_model") if world.leads else None
    reward_model = RewardModel.load(scorer, model.device) if scorer else None
    makers = Makers(settings, tokenizer, room, reward_model, len(prompts), opened, progress, world.leads)
    eos_ids = end_of_turn_ids(tokenizer) or end_of_text_ids(base)
    log = opened.enter_context(RolloutLog(work / ("rollouts.jsonl" if world.leads else f"rollouts-{world.rank}.jsonl")))
    engine = open_engine(settings, model, tokenizer, base, eos_ids, work, opened, progress, world)
    sampling: Engine = engine
    if settings.max_staleness:
        sampling = open_processes(settings, model, base, eos_ids, prompts[0].tokens, work, opened)
    loss = PolicyLoss(
        settings.loss, settings.given, settings.corrected_by, settings.kl, settings.temperature, settings.max_staleness
    )
    plan = RolloutPlan(
        prompts,
        makers.of_training(log),
        sampling,
        log,
        model,
        loss,
        settings,
        world,
        shares=joined_tokens(base, settings) > 0,
        longest=room if settings.grader is None else settings.max_new_tokens,
        progress=progress,
    )
    opened.callback(plan.close)
    validate = None
    if held_out:
        maker = makers.of_held_out(held_out)
        validate = HeldOutRollouts(held_out, maker, engine, settings.passing_grade, settings.seed, lambda: plan.done)
    for note in dict.fromkeys(makers.notes):
        progress.event("note", message=note)

    before = world.conduct(lambda: measured_before(validate, work / "before.json", model, settings, progress))
    measured = None if validate is None else partial(world.conduct, validate)
    every = math.ceil(len(plan) / VALIDATIONS)
    with without_dropout(model, progress, "rft"):
        result = train(model, plan, loss, settings, work, progress, "rft", validate=measured, validate_every=every, world=world)
    add_end_of_text(model, end_of_turn_ids(tokenizer))
    numbers |= save_tuned(model, tokenizer, base, settings, job.output)
    if not world.leads:
        return {}
    write_rollouts(job.output / "rollouts.parquet", log, prompts, settings.sync_steps, tokenizer)
    whole = run_counts(log, settings.passing_grade)
    if settings.max_staleness:
        whole |= staleness_counts(log, settings.sync_steps)
    shares = variance_shares(grades_of_chunks(log, 0.25), settings.grader) if settings.grader else {}
    for warning in warnings_of(log, whole, shares, before, result.validation, settings):
        progress.event("warning", message=f"rft: {warning}")
    whole |= {f"variance_of_{name}": share for name, share in shares.items()}
    return result.metrics({**counts, **before, **whole, **numbers, "prompts": len(prompts)})


def room_for_prompts(settings: RftSettings, base: Path) -> int:
    """Most tokens of a prompt. Raises ModelError if answers leave none."""
    longest = filled(settings.max_length)
    room = min(longest, context_of(read_config(base)) or longest) - settings.max_new_tokens
    if room < 1:
        raise ModelError(
            f"max_new_tokens {settings.max_new_tokens} leaves no room for a prompt in {room + settings.max_new_tokens} tokens: "
            "lower it, or raise max_length up to the positions of the model"
        )
    return room


class Makers:
    """Opens what makes graded attempts at prompts: graders of single answers, or an environment or agent, in the first process.
    rows: of the training's prompts. opened: closes what is opened here."""

    def __init__(
        self,
        settings: RftSettings,
        tokenizer: PreTrainedTokenizerBase,
        room: int,
        reward_model: RewardModel | None,
        rows: int,
        opened: ExitStack,
        progress: Progress,
        leads: bool,
    ):
        self._settings, self._tokenizer, self._room, self._reward_model = settings, tokenizer, room, reward_model
        self._opened, self._progress, self._leads = opened, progress, leads
        self._training = partial(settings.trainer_state, rows=rows, rows_per_step=settings.prompts_per_step)
        self._graders: list[Grader] = []
        self._acting = self._open_environment() if leads and settings.grader is None else None

    def of_training(self, log: RolloutLog) -> list[RolloutMaker]:
        """One for each thread that asks."""
        lanes = LANES if self._settings.max_staleness and self._acting is None else 1
        return [self._maker(self._settings.grader, "grader", self._settings.answers, log) for _ in range(lanes)]

    def of_held_out(self, prompts: list[SampledPrompt]) -> RolloutMaker:
        if self._acting is not None and self._settings.max_staleness:
            self._acting = self._open_environment()  # another thread makes these attempts, with processes of their own
        grader, key = held_out_grader(self._settings, prompts)
        return self._maker(grader, key, self._settings.held_out_answers, None)

    @property
    def notes(self) -> list[str]:
        """What the graders decided about their parts."""
        return [note for grader in self._graders for note in grader.notes]

    def _maker(self, settings: GraderSettings | None, key: str, answers: int, attempts: RolloutLog | None) -> RolloutMaker:
        if self._acting is not None:
            return self._acting(attempts, answers)
        settings = settings or GraderSettings.model_validate("verifier")  # of an environment; only the first process grades
        self._graders.append(grader := Grader(settings, f"rft.{key}", self._reward_model))
        if self._leads:
            self._opened.enter_context(grader)
        return GradedAnswers(grader, self._tokenizer, answers, self._training, self._progress)

    def _open_environment(self) -> Callable[[RolloutLog | None, int], RolloutMaker]:
        """(log of attempts, answers to each prompt) -> a maker of attempts of several turns."""
        settings, tokenizer, progress = self._settings, self._tokenizer, self._progress
        kind, named = ("environment", settings.environment) if settings.environment else ("agent", settings.agent or "")
        file, _, name = (f"{TASKSET_CHILD}:play" if named == TASKSETS else named).rpartition(":")
        seconds = settings.seconds or SECONDS[kind]
        processes = self._opened.enter_context(EnvironmentProcesses(Path(file), name, seconds, kind, settings.python))
        if kind == "environment":
            limits = {"max_turns": settings.max_turns, "longest_context": self._room}
            return lambda log, answers: EnvironmentRollouts(processes, tokenizer, log, progress, answers=answers, **limits)
        sessions = PolicySessions(tokenizer, self._room, settings.max_turns)
        server = self._opened.enter_context(SessionServer(sessions))
        return lambda log, answers: AgentRollouts(processes, sessions, server.base_url, log, progress, answers=answers)


def write_rollouts(
    path: Path, log: RolloutLog, prompts: Sequence[SampledPrompt], sync_steps: int, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Writes a row for each rollout, with its text."""
    with (
        renamed_when_complete(path) as temporary,
        pq.ParquetWriter(temporary, bare(ROLLOUT_ROWS), compression="zstd") as writer,
    ):
        for chunk in log.chunks:
            texts = [sampled_text(tokenizer, each.tokens, each.ended) for group in chunk.groups() for each in group]
            rows = [{**row, "text": text} for row, text in zip(log.rows(chunk, prompts, sync_steps), texts, strict=True)]
            writer.write_table(pa.Table.from_pylist(rows, schema=bare(ROLLOUT_ROWS)))


def warnings_of(
    log: RolloutLog,
    counts: Mapping[str, float],
    shares: Mapping[str, float],
    before: Mapping[str, float],
    after: Mapping[str, float],
    settings: RftSettings,
) -> Iterator[str]:
    """What a person should look at. shares: of variance_shares. before, after: numbers of held-out answers."""
    if not counts["learnt_rollouts"]:
        values = [grade.value for grade in grades_of_chunks(log) if grade.value is not None]
        yield nothing_learnt(counts, values, settings)
    if looks_reward_hacked(counts, before, after):
        yield WARN_REWARD_HACKING
    if (part := dominating_part(shares, before, after)) is not None:
        yield WARN_ONE_PART_DOMINATES.format(part=part, share=shares[part])


def nothing_learnt(counts: Mapping[str, float], values: Sequence[float], settings: RftSettings) -> str:
    """Why no answer was learnt. values: all grades that were given."""
    if len(set(values)) != 1:
        return WARN_NOTHING_LEARNT.format_map(counts)
    if settings.grader is None:
        kind = "environment" if settings.environment else "agent"
        who = f"`{kind}` {Path(settings.environment or settings.agent or '').name}"
    else:
        who = f"`grader` {' and '.join(Path(part.by).name for part in settings.grader.parts.values())}"
    prompts = "harder prompts" if values[0] >= settings.passing_grade else "prompts that the model answers well sometimes"
    if values[0] < settings.passing_grade and counts["cut_rollouts"]:
        prompts += f"; {counts['cut_rollouts']} answers were cut: raise max_new_tokens if they lack their end"
    return WARN_ONE_GRADE_FOR_ALL.format(who=who, grade=values[0], graded=len(values), prompts=prompts)


def looks_reward_hacked(counts: Mapping[str, float], before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Whether the reward rose by more than RISE, and the share of held-out answers that pass did not."""
    return counts["last_grade"] - counts["first_grade"] > RISE and is_flat(before, after)


def is_flat(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Whether held-out answers were measured, and no more of them pass than before the training."""
    return bool(before) and after["validation_pass_rate"] <= before["before_validation_pass_rate"]


def dominating_part(shares: Mapping[str, float], before: Mapping[str, float], after: Mapping[str, float]) -> str | None:
    """The part with more than MOST_OF_THE_VARIANCE of the variance of grades, where held-out answers are flat. shares: of
    variance_shares."""
    most = max(shares, key=shares.__getitem__, default=None)
    return most if most is not None and shares[most] > MOST_OF_THE_VARIANCE and is_flat(before, after) else None


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


def measure_start(base: Path, dataset: Path, settings: RftSettings) -> dict[str, float]:
    """Numbers of HeldOutRollouts: how the base answers the first training prompts, in this process. Raises ModelError."""
    tokenizer = load_tokenizer(base)
    prompts, _ = read_sampled_prompts(dataset, tokenizer, room_for_prompts(settings, base))
    engine = InProcessEngine(load_model(base), end_of_turn_ids(tokenizer) or end_of_text_ids(base), settings)
    with Grader(GraderSettings.model_validate(settings.grader), "rft.grader") as grader:
        maker = GradedAnswers(grader, tokenizer, settings.held_out_answers, lambda step: {}, Progress())
        first = prompts[: settings.held_out_prompts]
        return HeldOutRollouts(first, maker, engine, settings.passing_grade, settings.seed, lambda: 0)()


def measured_before(
    validate: HeldOutRollouts | None, path: Path, model: nn.Module, settings: RftSettings, progress: Progress
) -> dict[str, float]:
    """The held-out numbers of the model before its training, under names with `before_`; kept for a run that continues."""
    if validate is None:
        return {}
    if not path.exists():
        progress.event("note", message="rft: held-out prompts are answered before the first step")
        model.eval()
        measured = validate()
        for said, remedy in doubts(measured, settings):
            progress.event("warning", message=f"rft: {said}; {remedy}")
        numbers = {f"before_{name}": value for name, value in measured.items()}
        with renamed_when_complete(path) as temporary:
            temporary.write_text(json.dumps(numbers))
    return json.loads(path.read_text())
