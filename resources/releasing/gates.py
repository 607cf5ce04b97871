"""Gates: bounds that a release's measurements must meet before anyone may approve it.

    results = check_gates(gates, evaluation.metrics, temperature=1.0, drafter="eagle3")    # one GateResult for each gate
    missed(results[0])                                                               # a sentence, or None if it holds

Recovery has two bounds. Below the wanted value, quantization cost too much. Beyond 1 by more than the measurement's noise, the
compared models are not the right ones: a quantized model does not predict better than the model it was made from.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

LEAST_NOISE = 0.002
"""Least noise of recovery: rounding weights moves it by a few ten-thousandths either way, on any number of test rows, which a
bootstrap over rows does not show."""

MOST_NOISE = 0.05
"""Most noise of recovery: a wider interval means that two different models were compared."""

UNKNOWN_NOISE = 0.01
"""Noise for evaluation reports without an interval: with a single test row, and of earlier versions."""


class Gates(BaseModel):
    """Bounds that a release must meet before anyone may approve it. null switches a gate off."""

    model_config = ConfigDict(extra="forbid")

    recovery: float | None = Field(
        0.99, gt=0, le=1, description="Lowest recovery of the served model, exp(reference loss - served loss) per answer "
        "token. A value beyond 1 by more than its noise fails as well. null: no gate",
    )
    acceptance_length: float | None = Field(
        1.2, ge=1, description="Lowest acceptance length (lower end of the 95 % interval), at the recipe's "
        "num_speculative_tokens and temperature. null: no gate"
    )


class GateResult(BaseModel):
    """One gate with its measurement.

    low, high: the 95 % interval; None if the report has none. rows: number of test rows; None if unknown.
    """

    name: str
    wanted: float
    measured: float | None
    passed: bool
    low: float | None = None
    high: float | None = None
    rows: int | None = None
    why: str = ""


def check_gates(gates: Gates, evaluation: dict[str, Any], temperature: float, drafter: str | None) -> list[GateResult]:
    """Checks each enabled gate against the evaluation report's metrics. A gate without a measurement fails.

    drafter: the architecture of the release's drafter; None if it has none.
    """
    results = []
    if gates.recovery is not None:
        results.append(_checked("recovery", gates.recovery, evaluation, "recovery", "recovery"))
    if gates.acceptance_length is not None and drafter is not None:
        tau = f"tau_{drafter}_t{temperature:g}"
        results.append(_checked("acceptance_length", gates.acceptance_length, evaluation, f"{tau}_low", tau))
    return results


def missed(gate: GateResult) -> str | None:
    """Why a gate does not hold; None if it holds. The bounds are applied again, because an earlier version recorded a recovery
    of 1.1 as passed."""
    if gate.measured is None:
        return f"gate {gate.name}: not measured, and {gate.wanted:g} is wanted; run the recipe again"
    if gate.name == "recovery" and gate.measured - 1 > (noise := recovery_noise(gate)):
        now = f" ({gate.rows:,} now)" if gate.rows else ""
        return (
            f"gate recovery: {gate.measured:.6g} is beyond 1 by more than its noise ({noise:.2g}), so the served model is not "
            f"the quantized form of the model that it was compared with, or the test rows are too few; run the recipe again, "
            f"and if it stays so, add test rows{now} or set release.gates.recovery to null"
        )
    if gate.measured < gate.wanted or not gate.passed:
        return f"gate {gate.name}: {gate.measured:.6g} where at least {gate.wanted:g} is wanted"
    return None


def recovery_noise(gate: GateResult) -> float:
    """How far recovery may exceed 1 by chance: the distance to the lower end of its interval, clamped."""
    if gate.measured is None or gate.low is None:
        return UNKNOWN_NOISE
    return min(max(gate.measured - gate.low, LEAST_NOISE), MOST_NOISE)


def _checked(name: str, wanted: float, evaluation: dict[str, Any], key: str, interval: str) -> GateResult:
    measured, low, high = (_finite(evaluation.get(key)) for key in (key, f"{interval}_low", f"{interval}_high"))
    rows = _finite(evaluation.get("test_rows")) if name == "recovery" else None
    gate = GateResult(name=name, wanted=wanted, measured=measured, low=low, high=high, passed=True,
                      rows=None if rows is None else int(rows))
    problem = missed(gate)
    why = problem.removeprefix(f"gate {name}: ") if problem else _held(gate)
    return gate.model_copy(update={"passed": problem is None, "why": why})


def _held(gate: GateResult) -> str:
    said = f"{gate.measured:.6g} is at least {gate.wanted:g}"
    return f"{said} and not beyond 1 by more than {recovery_noise(gate):.2g}" if gate.name == "recovery" else said


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
