"""Reads the measurements of a report.json, also of one that an earlier version wrote.

    measurements_of(json.loads((report / "report.json").read_text()))

Earlier reports have no `measurements`: their numbers are in `models`, `recovery` and `acceptance`. Imports no torch.
"""

from __future__ import annotations

from typing import Any

from model_ops.evaluation.measurement import PAIRED, Measurement, at_temperature


def measurements_of(report: dict[str, Any]) -> list[Measurement]:
    """All measurements of a report."""
    if "measurements" in report:
        return [Measurement.model_validate(found) for found in report["measurements"]]
    return [*_losses(report), *_recovery(report), *_acceptance(report)]


def _losses(report: dict[str, Any]) -> list[Measurement]:
    models, names = report.get("models", {}), report.get("same_directory", {})
    return [Measurement(what="loss", of=role, value=models[name]["loss"], n=models[name]["rows"], counted="rows",
                        unit="nats per token")
            for role, name in {**{name: name for name in models}, **names}.items()]


def _recovery(report: dict[str, Any]) -> list[Measurement]:
    if report.get("recovery") is None:
        return []
    return [Measurement(what="recovery", of="target", against="reference", value=report["recovery"],
                        low=report.get("recovery_low"), high=report.get("recovery_high"), n=report.get("test_rows", 0),
                        counted="rows", unit="ratio", method=PAIRED)]


def _acceptance(report: dict[str, Any]) -> list[Measurement]:
    return [Measurement(what="acceptance_length", of=found["drafter"], sampling=at_temperature(found["temperature"]),
                        value=found["tau"], low=found["tau_low"], high=found["tau_high"], n=found["prompts"],
                        counted="prompts", unit="tokens per forward", method="bootstrap over prompts, 2,000 resamples")
            for found in report.get("acceptance", []) if found["drafter"] != "none"]
