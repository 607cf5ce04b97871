"""Builds the calibration dataset: training rows of sft_dataset that quantization looks at, drawn evenly over the prompt shapes.
Held-out rows are never read, so a measurement of the quantized model is on rows that its calibration did not see."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resources.composing.dataset_card import write_plain_card
from resources.composing.dataset_settings import CalibrationSettings
from resources.lake import attach_parquet, run, stream, workbench, write_rows


def build_calibration(
    dataset: Path, output: Path, settings: CalibrationSettings, about: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Fills `output` and returns counts, with a note if the dataset has fewer rows."""
    output.mkdir(parents=True, exist_ok=True)
    with workbench() as connection:
        attach_parquet(connection, "training_rows", dataset / "train.parquet")
        there = run(connection, "composing/calibration/count_rows").fetchall()[0][0]
        written = write_rows(
            stream(connection, "composing/calibration/split_rows", rows=settings.rows, seed=str(settings.seed)),
            output / "train.parquet",
        )
    if (dataset / "rendering.json").exists():
        shutil.copyfile(dataset / "rendering.json", output / "rendering.json")
    short = [f"datasets.calibration asks for {settings.rows:,} rows, and sft_dataset has {there:,} for training"]
    return {
        "rows": {"train": written},
        "notes": short if written < settings.rows else [],
        **write_plain_card(output, "Conversations that quantization is calibrated with: training rows only.", about or {}),
    }
