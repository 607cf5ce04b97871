"""Operation `preference`: trains a model on preferences, by the losses of model_ops.preferences.preference.

Job inputs: `model` (a model directory), `dataset` (train.parquet with pairs, unpaired_train.parquet with single answers, and
the same for validation). With `on_policy` the model learns from pairs of its own answers to prompts of the dataset, or of the
input `prompts` (rl_prompts), graded by the input `reward_model` where the grader asks for one, and sampled.parquet has a row
for each answer. The reference computes the log-probability of every label once, before the first step."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from model_ops.answers import AnswerReader, GradedAnswers, InProcessEngine, MeshEngine, RolloutLog, read_sampled_prompts
from model_ops.documents import context_of, joined_tokens
from model_ops.files import renamed_when_complete
from model_ops.graders import Grader
from model_ops.jobs import Job, ModelError, Progress, filled
from model_ops.machine import concrete
from model_ops.models import add_end_of_text, end_of_text_ids, load_tokenizer, read_config, refuse_misfit
from model_ops.operations.preference_settings import PreferenceTuningSettings
from model_ops.parallel import World
from model_ops.preferences import (
    PAIR,
    HeldOutPreferences,
    MismatchedPlan,
    PreferenceLoss,
    PreferencePlan,
    Preferences,
    ReferenceLogProbs,
    ReferenceReader,
    SampledPairPlan,
    SampledRounds,
    read_preferences,
)
from model_ops.rendering import end_of_turn_ids
from model_ops.rewards import RewardModel
from model_ops.tensors import use_memory_efficient_layers
from model_ops.training import RowsOf, load_to_tune, plan_validation, save_tuned, train, validated_as_saved, without_dropout

SAMPLED = "sampled.parquet"
FALLING = "logp_chosen may fall with logp_rejected: what is learnt is the difference, margin"
LEFT_OUT = ("equal_answers", "other_prompt", "too_long", "no_answer", "unrenderable_rows")
"""Counts of rows that are not learnt."""
MUCH = 0.1
"""Share of rows that are left out from which a note says so."""
LEAST_BALANCE, MOST_BALANCE = 1.0, 4 / 3
"""Of the weighted numbers of desirable and undesirable answers, for kto (arXiv 2402.01306, equation 8)."""


def run(job: Job, progress: Progress) -> dict[str, float | int | str]:
    """Trains and saves the model; returns metrics. Raises ModelError for a bad model or dataset, before weights are loaded."""
    with ExitStack() as graders:
        return _run(job, progress, graders)


def _run(job: Job, progress: Progress, graders: ExitStack) -> dict[str, float | int | str]:
    settings = job.settings_as(PreferenceTuningSettings)
    base, sampling = job.input("model"), settings.on_policy
    dataset = job.inputs.get("dataset") if sampling and "prompts" in job.inputs else job.input("dataset")
    world = World.start(settings.mesh)
    settings = concrete(settings, world.device)
    tokenizer = load_tokenizer(base)
    refuse_misfit(base, tokenizer)
    shares, positions = joined_tokens(base, settings) > 0, context_of(read_config(base))
    longest, learnt, held_out = filled(settings.max_length), None, None
    if dataset is not None:
        read = partial(read_preferences, dataset, tokenizer=tokenizer, max_length=longest, shares=shares, positions=positions)
        if sampling is None:
            learnt = read("train", rows=settings.rows_read)
            refuse_one_sided(learnt)
            note_left_out(learnt, progress)
        if validated := rows_held_out(dataset, settings.rows_read):
            held_out = read("validation", rows=validated)
    model, numbers = load_to_tune(base, settings, world.loading_device)
    world.place(model, settings.precision)
    use_memory_efficient_layers(model)  # as the trainer does: the reference computes with the same layers
    loss = PreferenceLoss(settings.losses, settings.given)
    readers: list[ReferenceReader] = []
    plan: PreferencePlan | SampledPairPlan
    source: PreferencePlan | SampledPairPlan | MismatchedPlan
    if learnt is None:
        rounds = sampled_rounds(job, settings, model, tokenizer, shares, graders, progress, world)
        source = plan = SampledPairPlan(rounds, model, settings, world, shares, loss.needs_reference)
    else:
        source = plan = PreferencePlan(learnt, settings, world)
        if "kto" in settings.losses:
            source = MismatchedPlan(plan, model, world, settings)
            note_balance(learnt, settings, progress)
        readers.append(source)
    checks = plan_validation(len(plan), plan.settings)
    validate = None
    if held_out and len(held_out.documents):
        validate = HeldOutPreferences(held_out, checks.tokens, plan.micro_batch_tokens, model, loss, settings, world)
        readers.append(validate)
    if loss.needs_reference and readers:
        ReferenceLogProbs(job.output / ".work", base, settings.precision).give(readers, model, world, progress)
    progress.event("note", message=f"preference: {FALLING}")
    with without_dropout(model, progress, "preference"):
        result = train(
            model,
            source,
            loss,
            settings,
            job.output / ".work",
            progress,
            "preference",
            validate=validate,
            validate_every=checks.every,
            world=world,
            validate_first=True,
        )
    add_end_of_text(model, end_of_turn_ids(tokenizer))
    numbers |= save_tuned(model, tokenizer, base, settings, job.output)
    numbers |= validated_as_saved(model, validate, result, world, progress, "preference")
    if learnt is not None:
        return result.metrics({**learnt.counts, **numbers})
    if not world.leads:
        return {}
    with renamed_when_complete(job.output / SAMPLED) as temporary:
        pq.write_table(rounds.table(), temporary, compression="zstd")
    return result.metrics({**rounds.counts(), **numbers})


def sampled_rounds(
    job: Job,
    settings: PreferenceTuningSettings,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    shares: bool,
    graders: ExitStack,
    progress: Progress,
    world: World,
) -> SampledRounds:
    """The rounds of `on_policy`, of which the first process grades and keeps the answers. graders: closes the grader. Raises
    ModelError for a grader or prompts that cannot be used."""
    sampling, base, longest = filled(settings.on_policy), job.input("model"), filled(settings.max_length)
    room = longest - sampling.max_new_tokens if shares else longest // 2
    room = min(room, context_of(read_config(base)) or room) - sampling.max_new_tokens
    prompts, counts = read_sampled_prompts(job.inputs.get("prompts") or job.input("dataset"), tokenizer, room)
    scorer = job.inputs.get("reward_model") if world.leads else None
    reward_model = RewardModel.load(scorer, model.device) if scorer else None
    grader = Grader(sampling.grader, "preference.on_policy.grader", reward_model)
    if world.leads:
        for note in graders.enter_context(grader).notes:
            progress.event("note", message=note)
    ends = end_of_turn_ids(tokenizer) or end_of_text_ids(base)
    log = RolloutLog(job.output / ".work" / ("sampled.jsonl" if world.leads else f"sampled-{world.rank}.jsonl"))
    engine = InProcessEngine(model, ends, sampling)
    sampler = engine if world.mesh is None else MeshEngine(engine, world)
    training = partial(settings.trainer_state, rows=len(prompts), rows_per_step=sampling.prompts_per_step)
    maker = GradedAnswers(grader, tokenizer, sampling.answers, training, progress, log)
    reader = AnswerReader(tokenizer)
    return SampledRounds(prompts, counts, sampler, maker, reader, sampling, settings.seed, graders.enter_context(log), progress)


def rows_held_out(dataset: Path, rows: RowsOf) -> RowsOf | None:
    """The validation rows that the dataset has, of those that are learnt; None without any."""
    kinds: dict[RowsOf, str] = {"pairs": "validation.parquet", "unpaired": "unpaired_validation.parquet"}
    present = [kind for kind, name in kinds.items() if rows in (kind, "both") and (dataset / name).exists()]
    return "both" if len(present) == 2 else present[0] if present else None


def refuse_one_sided(learnt: Preferences) -> None:
    """Raises ModelError if there is no row to learn, or if no answer is better or none worse than another one."""
    counts = learnt.counts
    if not counts["rows"]:
        raise ModelError(
            "the preference dataset has no training row for these losses: take one of single answers (kto, bco, "
            "apo_zero_unpaired) where there are only thumbs, or collect edits, regenerated answers and ratings"
        )
    if not len(learnt.documents):
        said = ", ".join(f"{name} {counts[name]}" for name in LEFT_OUT)
        raise ModelError(
            f"none of {counts['rows']} preference rows can be learnt ({said}): raise max_length, or look at the dataset's rows"
        )
    verdicts = set(learnt.verdicts.tolist())
    if PAIR not in verdicts and len(verdicts) == 1:
        said = "desirable" if 1 in verdicts else "undesirable"
        raise ModelError(
            f"all {len(learnt.documents)} answers are {said}, so nothing says what is better: add answers of the other class "
            f"or pairs{', or fine-tune on them with sft' if 1 in verdicts else ''}"
        )


def note_left_out(learnt: Preferences, progress: Progress) -> None:
    """A note if many rows are not learnt, with the reasons."""
    rows, left = learnt.counts["rows"], [f"{name} {learnt.counts[name]:,}" for name in LEFT_OUT if learnt.counts[name]]
    if rows - len(learnt.documents) >= MUCH * rows:
        progress.event(
            "note",
            message=f"preference: {rows - len(learnt.documents):,} of {rows:,} rows are not learnt ({', '.join(left)}): "
            "raise max_length for rows that are too long, or look at the dataset's rows",
        )


def note_balance(learnt: Preferences, settings: PreferenceTuningSettings, progress: Progress) -> None:
    """A note if kto's classes are weighted other than its authors advise."""
    pairs, desirable, undesirable = (int((learnt.verdicts == verdict).sum()) for verdict in (PAIR, 1, 0))
    better = (settings.desirable_weight or 1.0) * (pairs + desirable)
    worse = (settings.undesirable_weight or 1.0) * (pairs + undesirable)
    if not LEAST_BALANCE <= better / worse <= MOST_BALANCE:
        progress.event(
            "note",
            message=f"preference: desirable answers weigh {better / worse:.2f} times the undesirable ones, and kto works best "
            f"from 1 to 1.33 times: set desirable_weight to {1.15 * worse / (pairs + desirable):.2g}",
        )
