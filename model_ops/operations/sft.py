"""Operation `sft`: supervised fine-tuning with a loss on assistant tokens only, on packed rows of separate documents.

Job inputs: `model` (a model directory), `dataset` (train.parquet, optionally validation.parquet), optionally `served` (token
ids of logged answers); to continue an earlier model, `previous` (that model) and `learnt` (the dataset that it was trained on).
With method lora or qlora the weights are merged, and adapter/ holds the adapter in PEFT's format (model_ops.training.tuning).
"""

from functools import partial

from model_ops.documents import PackedPlan, read_chats, rows_to_learn, validation_of
from model_ops.jobs import Job, Progress
from model_ops.machine import concrete
from model_ops.models import add_end_of_text
from model_ops.objectives import next_token_loss
from model_ops.operations.sft_settings import SftSettings
from model_ops.parallel import World
from model_ops.rendering import end_of_turn_ids
from model_ops.training import first_documents, load_to_tune, plan_validation, save_tuned, train, validated_as_saved


def run(job: Job, progress: Progress) -> dict[str, float | int | str]:
    """Trains and saves the model; returns metrics. Raises ModelError for a bad model or dataset, before weights are loaded."""
    settings = job.settings_as(SftSettings)
    base = job.inputs.get("previous") or job.input("model")
    world = World.start(settings.mesh)
    settings = concrete(settings, world.device)
    dataset, counts = rows_to_learn(job, settings.replay, settings.seed, world)
    chats = read_chats(dataset, base, settings, job.inputs.get("served"), reasoning_budget=settings.reasoning_budget)
    model, numbers = load_to_tune(base, settings, world.loading_device)
    world.place(model, settings.precision)
    loss = partial(next_token_loss, z_loss=settings.z_loss)
    plan = PackedPlan(chats.documents, settings)
    checks = plan_validation(len(plan), plan.settings)
    held_out = first_documents(chats.validation, checks.tokens)
    validate = validation_of(model, held_out, settings.precision, world)
    result = train(
        model,
        plan,
        loss,
        settings,
        job.output / ".work",
        progress,
        "sft",
        validate=validate,
        validate_every=checks.every,
        world=world,
        validate_first=True,
    )
    add_end_of_text(model, end_of_turn_ids(chats.tokenizer))
    numbers |= save_tuned(model, chats.tokenizer, base, settings, job.output)
    numbers |= validated_as_saved(model, validate, result, world, progress, "sft")
    return result.metrics({**chats.counts, **counts, **numbers})
