"""Operation `speculator`: trains a drafter for the served target on the target's own answers, the output of `generate`. Weights
begin from the target, from the input "previous", or from the model that the architecture starts from (inputs "draft_model",
"mtp_layer"). Every generated token is supervised at every draft step, against the target's distribution over its full
vocabulary."""

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from model_ops.decoding import Runner, load_runner
from model_ops.files import TensorFileError, read_directory, target_digest, vocabulary_digest, weight_file_stamps
from model_ops.jobs import Job, ModelError, Progress, filled
from model_ops.models import end_of_text_ids, load_tokenizer, read_config
from model_ops.parallel import World, gather_parameters
from model_ops.speculators.continue_training import begin_between, check_fit, read_previous
from model_ops.speculators.draft_model import DraftModel
from model_ops.speculators.factory import new_draft_model
from model_ops.speculators.losses.chain_loss import Teacher
from model_ops.speculators.losses.training_loss import SpeculatorLoss, measure_alpha
from model_ops.speculators.registry import ARCHITECTURES, AnySpeculatorSettings
from model_ops.speculators.settings import SpeculatorSettings
from model_ops.speculators.states.hidden_states import (
    AnswerRow,
    HiddenStates,
    OnlineStates,
    StateChoice,
    choose_states,
    read_answers,
)
from model_ops.speculators.states.speculator_batches import (
    SpeculatorPlan,
    StateSource,
    choose_draft_vocabulary,
    count_answers,
    coverage_report,
    forced_ids,
)
from model_ops.speculators.verify_layers import stamp
from model_ops.training import ValidationPlan, first_documents, plan_validation, train


def check_target(target: Path, architecture: str) -> None:
    """Checks that a drafter of an architecture can be built for a target. Raises ModelError for what the architecture itself
    refuses (such as too few layers), for a target without an output head (its own, or tied to the embedding), and for an
    end-of-text id outside the vocabulary."""
    config = read_config(target)
    ARCHITECTURES[architecture].check_target(target, config)
    try:
        tensors = read_directory(target)
    except TensorFileError as error:
        raise ModelError(str(error)) from error
    tied = bool(config.get("tie_word_embeddings"))
    head, vocab = "model.embed_tokens.weight" if tied else "lm_head.weight", config.get("vocab_size")
    if type(vocab) is not int:
        raise ModelError(f"{target}: vocab_size in config.json is {vocab!r}, not a number: save the model again")
    packed = [name for name in tensors if name.startswith(f"{head}_")]  # some quantized formats split it
    if head not in tensors and not packed:
        raise ModelError(
            f"{target}: tie_word_embeddings is {str(tied).lower()} and there is no {head}: save the model with "
            "its output head, which drafters are trained against"
        )
    shape = tuple(tensors[head].shape) if head in tensors else (vocab, 0)
    if len(shape) != 2 or shape[0] != vocab:
        raise ModelError(f"{target}: {head} is {list(shape)}, but config.json has vocab_size {vocab}: save the model again")
    strange = sorted(token for token in end_of_text_ids(target) if not 0 <= token < vocab)
    if strange:
        raise ModelError(
            f"{target}: eos_token_id {strange[0]} is outside the vocabulary of {vocab}: set it in generation_config.json"
        )


def check_answers(
    answers: Path, target: Path, rows: Sequence[AnswerRow], left_out: Mapping[str, int], held_out: Sequence[AnswerRow] = ()
) -> None:
    """Checks that this target generated the answers and the held-out answers, and that there is a token to learn from.
    left_out: counts of rows that `read_answers` left out. Raises ModelError."""
    path = answers / "train.parquet"
    if not rows:
        if left_out.get("rows_left_out"):
            raise ModelError(
                f"none of the {left_out['rows_left_out']} answers in {path} holds a token to predict within "
                "max_length: raise max_length, or generate answers for shorter prompts"
            )
        raise ModelError(f"{path} holds no answer to train the drafter on; generate more")
    _check_origin(path, rows, target)
    if held_out:
        _check_origin(answers / "validation.parquet", held_out, target)


def _check_origin(path: Path, rows: Sequence[AnswerRow], target: Path) -> None:
    """Raises ModelError for answers of other weights or another tokenizer, and for ids outside the target's vocabulary."""
    named = {name.decode(): value.decode() for name, value in (pq.read_schema(path).metadata or {}).items()}
    digests = {"target_digest": (target_digest, "weights"), "vocabulary_digest": (vocabulary_digest, "tokenizer")}
    for name, (digest, what) in digests.items():
        given = named.get(name)
        own = digest(target) if given else ""
        if given and own and given != own:
            raise ModelError(
                f"{path} was answered with other {what} ({given[:12]}) than the target's ({own[:12]}): generate "
                "the answers again with the target that is to be served"
            )
    vocab = read_config(target)["vocab_size"]
    for row in rows:
        if not 0 <= min(row.ids) <= max(row.ids) < vocab:
            raise ModelError(
                f"{path}: row {row.row_id} holds token ids outside the target's vocabulary of {vocab}: they are "
                "of another tokenizer"
            )


VALIDATION_ROWS = 128
"""Most answers in validation: enough for alpha to about 0.01."""
LEAST_VALIDATION_ROWS = 16
"""Answers in validation of even the shortest training: below, alpha says nothing."""


def run(job: Job, progress: Progress) -> dict[str, Any]:
    """Trains and saves the drafter. Metrics: alpha by step and expected acceptance length on validation, coverage."""
    settings = job.settings_as(AnySpeculatorSettings)
    world = World.start(settings.mesh)
    target, answers, work = job.inputs["target"], job.inputs["dataset"], job.output / ".work"
    longest = filled(settings.max_length)
    rows, left_out = read_answers(answers / "train.parquet", longest)
    held_out: list[AnswerRow] = []
    settings = settings.fitted(sum(len(row.ids) for row in rows))
    checks = _plan_of_validation(rows, settings)
    if (answers / "validation.parquet").exists():
        held_out = read_answers(answers / "validation.parquet", longest)[0][:VALIDATION_ROWS]
        held_out = first_documents(held_out, checks.tokens, lambda row: len(row.ids), LEAST_VALIDATION_ROWS)
    check_target(target, settings.architecture)
    check_answers(answers, target, rows, left_out, held_out)
    settings_to_begin = settings.model_copy(update=_given(job, settings))
    previous = _previous(job, settings)
    runner = load_runner(target)
    model, coverage = new_drafter(target, runner, rows, held_out, settings_to_begin)
    continued: dict[str, float] = {**check_fit(model, previous)} if previous is not None else {}
    states, held_out_states, chosen = _states(job, runner, model, rows, held_out, settings, progress, world)
    teacher = Teacher(runner.head.weight, model.target_ids, runner.soft_cap)
    loss = SpeculatorLoss(teacher, settings)

    def validate() -> dict[str, float]:
        return measure_alpha(model, teacher, held_out, held_out_states, settings.num_speculative_tokens, world)

    measured: list[float] = []

    def accepted() -> float:
        answers_read = (held_out, held_out_states) if held_out else (rows[:VALIDATION_ROWS], states)
        alphas = measure_alpha(model, teacher, *answers_read, settings.num_speculative_tokens, world)
        measured.append(alphas.get("validation_expected_tau", 1 + alphas.get("validation_alpha_0", 0.0)))
        return measured[-1]

    if previous is not None:
        continued["previous_share"] = begin_between(model, previous, settings.previous_share, accepted)
        if measured and held_out:  # the first measurement is of the previous drafter alone
            continued["previous_expected_tau"] = measured[0]
    world.place_single_unit(model)
    plan = SpeculatorPlan(rows, states, settings)
    result = train(
        model, plan, loss, settings, work, progress, "speculator", validate if held_out else None, checks.every, world=world
    )
    gather_parameters(model, keep=world.leads)
    if world.leads:
        _save(model, job, settings)
        shutil.rmtree(work / "states", ignore_errors=True)
    return {
        "loss": result.loss,
        "precision": result.precision,
        **result.validation,
        "steps": result.steps,
        "tokens": result.tokens,
        "tokens_per_second": result.tokens_per_second,
        "seconds": result.seconds,
        "peak_memory_mb": result.peak_memory_mb,
        "draft_vocab_size": len(model.target_ids),
        **coverage,
        "rows": len(rows),
        **left_out,
        **continued,
        "hidden_states": chosen.mode,
        "hidden_states_gib": chosen.cache_gib,
    }


def _plan_of_validation(rows: list[AnswerRow], settings: SpeculatorSettings) -> ValidationPlan:
    """How often the training validates, before its batches are planned: these need the hidden states."""
    passes = (settings.epochs or 0) * sum(len(row.ids) for row in rows) / filled(settings.tokens_per_step)
    return plan_validation(settings.steps or max(1, math.ceil(passes)), settings)


def _save(model: DraftModel, job: Job, settings: SpeculatorSettings) -> None:
    """Saves the drafter for servers, in the target's dtype and with the target's digests."""
    target = job.inputs["target"].resolve()
    config = read_config(target)
    around_both = os.path.commonpath([target, job.output.resolve()])  # the speculators layout names its target from here
    model.save(
        job.output,
        settings.num_speculative_tokens,
        served_dtype(config),
        verifier=os.path.relpath(target, around_both),
        verifier_architectures=config.get("architectures"),
    )
    stamp(job.output, target)


def new_drafter(
    target: Path, runner: Runner, rows: list[AnswerRow], held_out: list[AnswerRow], settings: SpeculatorSettings
) -> tuple[DraftModel, dict[str, Any]]:
    """A drafter initialised from the target, and the coverage of answer tokens by its vocabulary."""
    counts = count_answers(rows, runner.embedding.shape[0])
    if not settings.PART_OF_THE_VOCABULARY:
        ids = torch.arange(len(counts))
        return new_draft_model(settings, runner, ids), coverage_report(ids, rows, held_out)
    try:
        ids, _ = choose_draft_vocabulary(
            counts, forced_ids(target, load_tokenizer(target)), settings.draft_vocab_size, settings.draft_coverage
        )
    except ValueError as error:
        raise ModelError(f"draft_vocab_size cannot be used: {error}") from error
    return new_draft_model(settings, runner, ids), coverage_report(ids, rows, held_out)


def _given(job: Job, settings: SpeculatorSettings) -> dict[str, str]:
    """{recipe key: directory} of the model that the drafter starts from, after a check; {} for other architectures."""
    start = ARCHITECTURES[settings.architecture].starts_from
    if start is None:
        return {}
    named = getattr(settings, start.key)
    if start.key not in job.inputs and named == start.word:
        raise ModelError(f"{start.key} is {named}: give the job the input {start.key}, or set a directory")
    directory = job.inputs.get(start.key) or Path(named)
    start.check(directory, job.inputs["target"])
    return {start.key: str(directory)}


def _previous(job: Job, settings: SpeculatorSettings) -> DraftModel | None:
    """The drafter for a warm start: the job's input `previous`, or the directory in the settings; None without one."""
    directory = job.inputs.get("previous")
    if directory is None and settings.continue_from not in (None, "last"):
        directory = Path(settings.continue_from)
    return None if directory is None else read_previous(directory, job.inputs["target"], settings)


def _states(
    job: Job,
    runner: Runner,
    model: DraftModel,
    rows: list[AnswerRow],
    held_out: list[AnswerRow],
    settings: SpeculatorSettings,
    progress: Progress,
    world: World,
) -> tuple[StateSource, StateSource, StateChoice]:
    """Sources of the target's hidden states for training and held-out rows: a cache that is computed now, or online."""
    folder, stamps = job.output / ".work" / "states", weight_file_stamps(job.inputs["target"])
    both = [HiddenStates(folder, some, model.capture, stamps) for some in (rows, held_out)]

    def choose() -> StateChoice:
        return choose_states(
            settings,
            [*rows, *held_out],
            len(model.capture),
            runner.config.hidden_size,
            folder,
            there=sum(cache.bytes_there() for cache in both),
        )

    chosen = world.gather(choose() if world.leads else None)[0]  # one process decides, because free disk space changes
    progress.event("note", message=f"speculator: hidden states {chosen.mode} ({chosen.reason})")
    if chosen.mode == "online":
        online = [OnlineStates(runner, some, model.capture) for some in (rows, held_out)]
        return online[0], online[1], chosen
    both[0].compute(runner, progress, "speculator: hidden states", world)
    if held_out:
        both[1].compute(runner, progress, "speculator: held-out hidden states", world)
    return both[0], both[1], chosen


def served_dtype(config: dict[str, Any]) -> torch.dtype:
    """The dtype in a target's config.json, in which its drafter is stored; bfloat16 if there is none."""
    name = config.get("dtype") or config.get("torch_dtype")
    return getattr(torch, name) if name in ("bfloat16", "float16", "float32") else torch.bfloat16
