"""speculator: the draft model, trained for this traffic and these weights."""

import dagster as dg

from assets.held_out import nothing_held_out_is_learnt
from assets.overrides import DrafterOverrides
from assets.ownership import DRAFTER, OWNERS, WORKER_POOL
from assets.presentation import shown
from model_ops.speculators import ARCHITECTURES, SpeculatorSettings
from resources.digests import source_digest
from resources.stages import ModelPolicy, last_model, stage
from resources.workshop import Workshop


@dg.asset(
    deps=[*stage("speculator").may_start_from, last_model(), "speculator_dataset"],
    group_name=DRAFTER,
    kinds={"pytorch", "huggingface"},
    owners=OWNERS,
    pool=WORKER_POOL,
    code_version=source_digest("model_ops/speculators/operation.py")[:12],
)
def speculator(
    context: dg.AssetExecutionContext,
    config: DrafterOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    speculator_settings: dg.ResourceParam[SpeculatorSettings],
) -> dg.MaterializeResult:
    """The draft model: proposes tokens that the served model verifies, so that answers come faster and stay the same.

    Trained on `speculator_dataset`, for exactly the weights that are served. Lies in `models/<workload>/speculator/<version>/`
    in the layout that vLLM or SGLang loads for its architecture (`speculator.architecture` in the recipe).
    """
    inputs = {"target": workshop.current("model", policy.served), "dataset": workshop.current("dataset", "speculator_dataset")}
    may_continue = config.continue_from_last and workshop.made_of("model", "speculator", inputs["target"])
    settings, outside = config.drafter(speculator_settings, may_continue), []
    start = ARCHITECTURES[settings.architecture].starts_from
    if start is not None and policy.drafter_from:
        inputs[start.key] = workshop.current("model", policy.drafter_from)
    elif start is not None:
        outside = [place] if (place := getattr(settings, start.key)) else []
    manifest = workshop.train(
        "speculator", "speculator", settings, inputs, context, outside=outside, continue_from=settings.continue_from
    )
    return shown(manifest, workshop)


@dg.asset_check(asset="speculator", blocking=True)
def speculator_learnt_nothing_held_out(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """No dataset in the model's ancestry trains on a row that one of them holds out. Blocks the next steps."""
    return nothing_held_out_is_learnt(workshop, "model", "speculator")
