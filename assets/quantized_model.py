"""quantized_model: the weights that servers load: int8, int4, FP8 or FP4, compressed-tensors layout."""

import dagster as dg

from assets.presentation import shown
from assets.stage_asset import worker_asset
from model_ops.operations import QuantizeSettings
from resources.stages import ModelPolicy, parent_of
from resources.workshop import Workshop


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
    `models/<workload>/quantized_model/<version>/` as compressed-tensors, which vLLM and SGLang load.
    """
    model = workshop.current("model", policy.source_of("quantized_model"))
    inputs = {"model": model}
    if quantize_settings.reads_rows:
        rows = "sft_dataset" if "calibration_dataset" in policy.disabled else "calibration_dataset"
        inputs |= {"dataset": workshop.current("dataset", rows), "served": workshop.current("dataset", "served_answers")}
    manifest = workshop.train("quantized_model", "quantize", quantize_settings, inputs, context)
    return shown(manifest, workshop)
