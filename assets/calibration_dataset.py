"""calibration_dataset: training rows that quantization is calibrated with."""

import dagster as dg

from assets.presentation import changes, shown
from assets.shortages import tell_shortages
from assets.stage_asset import stage_asset
from resources.composing import CalibrationSettings, build_calibration
from resources.curating import CurationSettings
from resources.workshop import Workshop

SOURCES = ("resources/composing/calibration.py",)


@stage_asset("sft_dataset", sources=SOURCES)
def calibration_dataset(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    calibration_dataset_settings: dg.ResourceParam[CalibrationSettings],
    curation_settings: dg.ResourceParam[CurationSettings],
) -> dg.MaterializeResult:
    """Training rows of `sft_dataset`, drawn evenly over the prompt shapes, that quantization is calibrated with.

    Held-out rows are never among them. Lies in `datasets/<workload>/calibration_dataset/<version>/train.parquet`.
    """
    dataset = workshop.current("dataset", "sft_dataset")
    about = {"workload": workshop.workload, "name": "calibration_dataset", "pii": curation_settings.pii}
    manifest = workshop.build(
        "dataset",
        "calibration_dataset",
        op="build_calibration",
        sources=SOURCES,
        config={**calibration_dataset_settings.model_dump(mode="json"), "about": about},
        inputs=[dataset.as_input()],
        work=lambda output: build_calibration(workshop.directory(dataset), output, calibration_dataset_settings, about),
    )
    tell_shortages(context, manifest)
    return shown(manifest, workshop, **changes(manifest, workshop))
