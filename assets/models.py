"""Every model from the base to the served one, each made by the worker from the one before it, and the reward model."""

import io
from collections.abc import Mapping, Sequence

import dagster as dg

from assets.overrides import BaseOverrides, SftOverrides, TrainingOverrides
from assets.presentation import embedded, shown
from assets.stage_asset import held_out_check, learnt_inputs, worker_asset
from model_ops.adapters import model_places
from model_ops.operations import (
    ImportBaseSettings,
    MergeSettings,
    PreferenceTuningSettings,
    QuantizeSettings,
    RewardModelSettings,
    SecondSftSettings,
    SftSettings,
    StudentSettings,
    TinyBaseSettings,
)
from model_ops.reinforcement import RftSettings
from resources.releasing import rollout_series
from resources.stages import ModelPolicy, parent_of
from resources.workshop import Workshop, outside_name


@worker_asset(sources=("model_ops/operations/tiny_base.py", "model_ops/operations/import_base.py"))
def base_model(
    context: dg.AssetExecutionContext,
    config: BaseOverrides,
    workshop: dg.ResourceParam[Workshop],
    base_name: dg.ResourceParam[str],
    base_revision: dg.ResourceParam[str],
    policy: dg.ResourceParam[ModelPolicy],
    tiny_settings: dg.ResourceParam[TinyBaseSettings],
) -> dg.MaterializeResult:
    """The model that fine-tuning starts from: a Hugging Face id, a directory, or `tiny`, which the run trains.

    A model of the Hub stays at the commit that it was imported from. A PEFT adapter is merged into the model that it was
    trained on. Every tensor is checked against the config. Lies in
    `models/<workload>/base_model/<version>/`, in the Hugging Face layout."""
    if base_name == "tiny":
        manifest = workshop.train("base_model", "tiny_base", config.applied_to(tiny_settings), {}, context)
    else:
        revision = workshop.commit_to_import(base_name, base_revision, config.revision)
        settings = ImportBaseSettings(model=base_name, revision=revision, mtp_layer=policy.drafter_from == "base_model")
        manifest = workshop.train(
            "base_model",
            "import_base",
            settings,
            {},
            context,
            outside=[outside_name(base_name, base_revision), *model_places(base_name)[1:]],
        )
    return shown(manifest, workshop)


@worker_asset(parent_of("sft_model"), "sft_dataset", "served_answers", "teacher_answers", "length_report")
def sft_model(
    context: dg.AssetExecutionContext,
    config: SftOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    sft_settings: dg.ResourceParam[SftSettings],
) -> dg.MaterializeResult:
    """The base model fine-tuned on the assistant's turns of `sft_dataset`.

    Made from `base_model` and `sft_dataset` (or the dataset that `sft.dataset` names, or `teacher_answers`); `sft:` in the
    recipe says how (full, LoRA or QLoRA). Lies in `models/<workload>/sft_model/<version>/` in the Hugging Face layout, with
    metrics.jsonl (a line for each step)."""
    inputs = learnt_inputs(workshop, policy, "sft_model")
    asked = config.continue_from_last or sft_settings.continue_from == "last"
    learnt = workshop.learnt_before("model", "sft_model", inputs, same="model", dataset="dataset") if asked else None
    settings = config.model(sft_settings, may_continue=learnt is not None)
    continues = settings.continue_from == "last" and learnt is not None
    manifest = workshop.train(
        "sft_model",
        "sft",
        settings,
        inputs,
        context,
        continue_from="last" if continues else None,
        pinned={"learnt": learnt} if continues and learnt is not None else None,
    )
    return shown(manifest, workshop)


sft_model_learnt_nothing_held_out = held_out_check("sft_model")


@worker_asset(parent_of("second_sft_model"), "sft_dataset", "served_answers", "length_report")
def second_sft_model(
    context: dg.AssetExecutionContext,
    config: TrainingOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    second_sft_settings: dg.ResourceParam[SecondSftSettings],
) -> dg.MaterializeResult:
    """The fine-tuned model, fine-tuned once more on the dataset that `second_sft.dataset` names, with a schedule of its own.

    Begins with the weights of `sft_model` (with LoRA, its merged ones) and a new optimizer. Made from `sft_model` and that
    dataset, or `sft_dataset`; `second_sft:` in the recipe says how. Lies in `models/<workload>/second_sft_model/<version>/` in
    the Hugging Face layout, with metrics.jsonl (a line for each step)."""
    inputs = learnt_inputs(workshop, policy, "second_sft_model")
    manifest = workshop.train("second_sft_model", "sft", config.applied_to(second_sft_settings), inputs, context)
    return shown(manifest, workshop)


second_sft_model_learnt_nothing_held_out = held_out_check("second_sft_model")


@worker_asset(parent_of("preference_model"), "preference_dataset", "rl_prompts", "reward_model", "length_report")
def preference_model(
    context: dg.AssetExecutionContext,
    config: TrainingOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    preference_settings: dg.ResourceParam[PreferenceTuningSettings],
) -> dg.MaterializeResult:
    """The fine-tuned model, trained so that answers which users chose become likelier than those which they rejected.

    Made from the model before it and `preference_dataset`, or from its own answers to prompts (`preference.on_policy`);
    `preference:` in the recipe says how. The log-probability of a chosen answer may fall: what is learnt is the difference.
    Lies in `models/<workload>/preference_model/<version>/` in the Hugging Face layout, with metrics.jsonl (a line for each
    step), and sampled.parquet (a row for each of its own answers)."""
    inputs = learnt_inputs(workshop, policy, "preference_model")
    if "preference_dataset" not in policy.disabled:  # also beside prompts that it answers itself
        inputs["dataset"] = workshop.current("dataset", "preference_dataset")
    settings = config.applied_to(preference_settings)
    outside = settings.on_policy.grader.files if settings.on_policy else ()
    manifest = workshop.train("preference_model", "preference", settings, inputs, context, outside=outside)
    return shown(manifest, workshop)


preference_model_learnt_nothing_held_out = held_out_check("preference_model")


@worker_asset(parent_of("reward_model"), "preference_dataset", "length_report")
def reward_model(
    context: dg.AssetExecutionContext,
    config: TrainingOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    reward_model_settings: dg.ResourceParam[RewardModelSettings],
) -> dg.MaterializeResult:
    """A model that scores answers, trained on pairs of a better and a worse answer. No other model starts from it.

    Made from the fine-tuned model and `preference_dataset`; `reward_model:` in the recipe says how. `may_grade` says whether it
    reached its gate on held-out pairs. Lies in `models/<workload>/reward_model/<version>/` as a sequence classifier of
    transformers, with reward.json (calibration, and what was measured) and metrics.jsonl (a line for each step)."""
    inputs = learnt_inputs(workshop, policy, "reward_model")
    manifest = workshop.train("reward_model", "reward_model", config.applied_to(reward_model_settings), inputs, context)
    return shown(manifest, workshop)


reward_model_learnt_nothing_held_out = held_out_check("reward_model")


@worker_asset(parent_of("rft_model"), "rl_prompts", "reward_model", "length_report")
def rft_model(
    context: dg.AssetExecutionContext,
    config: TrainingOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    rft_settings: dg.ResourceParam[RftSettings],
) -> dg.MaterializeResult:
    """The model before it, trained so that its own answers with a high grade become likelier (reinforcement fine-tuning).

    Made from that model and `rl_prompts`; `rft:` in the recipe says how, and who grades. Held-out prompts are answered before
    and after. Lies in `models/<workload>/rft_model/<version>/` in the Hugging Face layout, with metrics.jsonl (a line for each
    step), and rollouts.parquet (a row for each of its answers, with its grade)."""
    inputs, settings = learnt_inputs(workshop, policy, "rft_model"), config.applied_to(rft_settings)
    manifest = workshop.train("rft_model", "rft", settings, inputs, context, outside=settings.files)
    series = rollout_series(workshop.directory(manifest), settings.passing_grade)
    return shown(manifest, workshop, rollout_curves=embedded(rollout_curves(series), "rollouts"))


def rollout_curves(series: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> bytes:
    """A PNG with a plot for each title."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 10), dpi=90, layout="constrained")
    plots = figure.subplots(len(series), sharex=True)
    for axes, (title, lines) in zip(plots, series.items(), strict=True):
        for name, points in lines.items():
            axes.plot(*zip(*points, strict=True) if points else ((), ()), marker=".", linewidth=1, label=name)
        axes.set_title(title, fontsize=9, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        if len(lines) > 1:
            axes.legend(frameon=False, fontsize=7)
    plots[-1].set_xlabel("step")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


rft_model_learnt_nothing_held_out = held_out_check("rft_model")


@worker_asset(parent_of("student_model"), "sft_dataset", "served_answers", "teacher_answers", "length_report")
def student_model(
    context: dg.AssetExecutionContext,
    config: TrainingOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    student_settings: dg.ResourceParam[StudentSettings],
) -> dg.MaterializeResult:
    """A smaller model, distilled from the fine-tuned one on `sft_dataset`: its most important layers, or a model of your own.

    It learns the teacher's whole distributions, not only its answers. Made from the fine-tuned model (or its merge) and
    `sft_dataset`, or `teacher_answers`; `student:` in the recipe says how deep it is, or which model it begins as. Lies in
    `models/<workload>/student_model/<version>/` in the Hugging Face layout."""
    inputs, settings = learnt_inputs(workshop, policy, "student_model"), config.applied_to(student_settings)
    outside = model_places(student_settings.base) if student_settings.base else []
    manifest = workshop.train("student_model", "distill", settings, inputs, context, outside=outside)
    return shown(manifest, workshop)


student_model_learnt_nothing_held_out = held_out_check("student_model")


@worker_asset(parent_of("merged_model"), parent_of("rft_model"), parent_of("preference_model"), "base_model", "sft_dataset")
def merged_model(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    merge_settings: dg.ResourceParam[MergeSettings],
) -> dg.MaterializeResult:
    """The fine-tuned model merged with its base model or with other models of the same shape, after `merge:` in the recipe.

    Made from `rft_model`, `preference_model`, `sft_model`, `base_model` and directories, as the recipe lists them; a search of
    weights measures candidates on validation rows of `sft_dataset`. Lies in `models/<workload>/merged_model/<version>/` in the
    Hugging Face layout."""
    inputs = {"model": workshop.current("model", policy.source_of("merged_model"))}
    before = inputs["model"]
    if merge_settings.reads_preferred:
        before = inputs["preferred"] = workshop.current("model", policy.source_of("rft_model"))
    if merge_settings.reads_fine_tuned:
        before = inputs["fine_tuned"] = workshop.current("model", policy.source_of("preference_model"))
    base = workshop.current("model", "base_model")
    if merge_settings.reads_base and base.version != before.version:
        inputs["base"] = base
    if merge_settings.reads_rows:
        inputs["dataset"] = workshop.current("dataset", "sft_dataset")
    manifest = workshop.train("merged_model", "merge", merge_settings, inputs, context, outside=merge_settings.directories)
    return shown(manifest, workshop)


@worker_asset(parent_of("quantized_model"), "sft_dataset", "calibration_dataset", "served_answers", "length_report")
def quantized_model(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    quantize_settings: dg.ResourceParam[QuantizeSettings],
) -> dg.MaterializeResult:
    """The model to serve, with smaller weights: `quantize:` in the recipe names the scheme.

    Made from the student, or from the fine-tuned model if there is no student or the student drafts. int4 weights are rounded
    for what layers read in conversations of `sft_dataset`, or of `calibration_dataset`. Lies in
    `models/<workload>/quantized_model/<version>/` as compressed-tensors, which vLLM and SGLang load."""
    model = workshop.current("model", policy.source_of("quantized_model"))
    inputs = {"model": model}
    if quantize_settings.reads_rows:
        rows = "sft_dataset" if "calibration_dataset" in policy.disabled else "calibration_dataset"
        inputs |= {"dataset": workshop.current("dataset", rows), "served": workshop.current("dataset", "served_answers")}
    manifest = workshop.train("quantized_model", "quantize", quantize_settings, inputs, context)
    return shown(manifest, workshop)
