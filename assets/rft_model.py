"""rft_model: the model before it, fine-tuned by rewards on its own answers."""

import io
from collections.abc import Mapping, Sequence

import dagster as dg

from assets.overrides import TrainingOverrides
from assets.presentation import embedded, shown
from assets.stage_asset import held_out_check, learnt_inputs, worker_asset
from model_ops.reinforcement import RftSettings
from resources.releasing import rollout_series
from resources.stages import ModelPolicy, parent_of
from resources.workshop import Workshop


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
    step), and rollouts.parquet (a row for each of its answers, with its grade).
    """
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
