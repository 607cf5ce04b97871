"""The result of one gate: number, interval, bound, what was compared; the sentence about it, and the verdict over all gates.

A gate on the favourable end of an interval is missed where the whole interval is beyond the bound. Where the interval reaches
further than TELLS beyond it, the measurement can hardly miss the bound either: there were too few items to tell.

Recovery has two bounds. Below the wanted value, quantization cost too much. Beyond 1 by more than the measurement's noise, the
compared models are not the right ones: a quantized model does not predict better than the model it was made from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, field_validator

from model_ops.jobs import counted

LEAST_NOISE = 0.002
"""Least noise of recovery: rounding weights moves it by a few ten-thousandths either way, on any number of test rows, which a
bootstrap over rows does not show."""

MOST_NOISE = 0.05
"""Most noise of recovery: a wider interval means that two different models were compared."""

UNKNOWN_NOISE = 0.01
"""Noise for evaluation reports without an interval: with a single test row."""

TELLS = 0.05
"""How far beyond its bound the unfavourable end of an interval may be, for a gate on the favourable end to hold."""

ERASED_ROWS = "erased_rows"
"""The gate on rows that weights learnt and that were erased since: the only one whose measurement changes later."""

ENDS = {"value": "", "low": "the lower end of its interval", "high": "the upper end of its interval"}
BOUNDS = {"least": "at least", "most": "at most"}


class GateResult(BaseModel):
    """One gate with its measurement.

    wanted: the bound, and `bound` its direction; judged_by: which end of the interval must meet it. low, high: the 95 %
    interval; None if the report has none. rows: how many `counted` (rows, prompts, items) it was measured on; None if unknown.
    of, against, on, sampling: what was compared, as in a Measurement. reason: why it was not measured. remark: what helps
    to mend it if it is missed or was not measured. nothing_to_compare: the gate holds because there is nothing to compare with.
    """

    name: str
    wanted: float
    measured: float | None
    passed: bool
    low: float | None = None
    high: float | None = None
    rows: int | None = None
    why: str = ""
    bound: Literal["least", "most"] = "least"
    judged_by: Literal["value", "low", "high"] = "value"
    of: str = ""
    against: str = ""
    on: str = ""
    sampling: str = ""
    unit: str = ""
    counted: str = "rows"
    reason: str = ""
    remark: str = ""
    nothing_to_compare: bool = False

    @field_validator("measured", "low", "high")
    @classmethod
    def _is_a_number(cls, value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    @property
    def is_lenient(self) -> bool:
        """Whether it is missed only where the whole interval is beyond the bound."""
        return (self.bound, self.judged_by) == ("least", "high")

    @property
    def has_too_few(self) -> bool:
        """Whether the interval is too wide to tell. A single item has no interval."""
        if not self.is_lenient or self.measured is None or self.nothing_to_compare:
            return False
        return self.low is None or self.high is None or (self.low < self.wanted - TELLS and self.high >= self.wanted)

    @property
    def state(self) -> Literal["holds", "missed", "too few to tell", "nothing to compare"]:
        if self.nothing_to_compare:
            return "nothing to compare"
        return "missed" if gate_problem(self) else "too few to tell" if self.has_too_few else "holds"

    @property
    def judged(self) -> float | None:
        """The number that must meet the bound."""
        return {"value": self.measured, "low": self.low, "high": self.high}[self.judged_by]

    @property
    def wanted_text(self) -> str:
        """`at most 0.02`, `at least 0.99`."""
        return f"{BOUNDS[self.bound]} {self.wanted:g}"

    @property
    def compared_text(self) -> str:
        """What was compared on what: `target against base, held-out sessions, 300 rows`."""
        pair = f"{self.of} against {self.against}" if self.of and self.against else self.of or self.against
        counted = f"{self.rows:,} {self.counted}" if self.rows is not None else ""
        return ", ".join(part for part in (pair, self.on, self.sampling, counted) if part)

    @property
    def interval_text(self) -> str:
        """`0.1200 to 0.1900`; "" without an interval."""
        return "" if self.low is None or self.high is None else f"{self.low:z.4f} to {self.high:z.4f}"

    @property
    def figures(self) -> str:
        """Number, interval and what was compared."""
        interval = f"95 % interval {self.interval_text}" if self.interval_text else ""
        about = "; ".join(part for part in (interval, self.compared_text) if part)
        unit = f" {self.unit}" if self.unit not in ("", "ratio", "share") else ""
        return f"{self.measured:z.6g}{unit}{f' ({about})' if about else ''}"

    @property
    def held(self) -> str:
        """Why it is not missed, for a gate that is not."""
        if self.nothing_to_compare:
            return f"nothing to compare: {self.reason}"
        if self.has_too_few:
            return f"{self.figures}: too few {self.counted} to tell whether it is {self.wanted_text}{self._would_tell}"
        end = f"{ENDS[self.judged_by]} is " if self.judged_by != "value" else ""
        said = f"{self.figures}, {end}{self.wanted_text}" if end else f"{self.figures} is {self.wanted_text}"
        return f"{said} and not beyond 1 by more than {recovery_noise(self):.2g}" if self.name == "recovery" else said

    @property
    def _would_tell(self) -> str:
        """About how many items would: an interval narrows with their square root."""
        if self.low is None or self.high is None or not self.rows:
            return ""
        return f"; about {round(self.rows * ((self.high - self.low) / 2 / TELLS) ** 2, -1):,.0f} would"


def gate_problem(gate: GateResult) -> str | None:
    """Why a gate is missed; None if it is not. The bounds are applied again, because release.json may have been edited."""
    if gate.nothing_to_compare or (gate.has_too_few and gate.passed):
        return None
    if gate.measured is None or gate.judged is None:
        why = f" ({gate.reason})" if gate.reason else ""
        remedy = gate.remark or "run the recipe again"
        return f"gate {gate.name}: not measured{why}, and {gate.wanted_text} is wanted; {remedy}"
    if gate.name == "recovery" and gate.measured - 1 > (noise := recovery_noise(gate)):
        now = f" ({gate.rows:,} now)" if gate.rows else ""
        return (
            f"gate recovery: {gate.measured:.6g} is beyond 1 by more than its noise ({noise:.2g}), so the served model is not "
            f"the quantized form of the model that it was compared with, or the test rows are too few; run the recipe again, "
            f"and if it stays so, add test rows{now} or set release.gates.recovery to null"
        )
    holds = gate.judged >= gate.wanted if gate.bound == "least" else gate.judged <= gate.wanted
    if not holds or not gate.passed:
        end = ENDS[gate.judged_by]
        wanted = f", where {end} must be {gate.wanted_text}" if end else f" where {gate.wanted_text} is wanted"
        return f"gate {gate.name}: {gate.figures}{wanted}{f'; {gate.remark}' if gate.remark else ''}"
    return None


def recovery_noise(gate: GateResult) -> float:
    """How far recovery may exceed 1 by chance: the distance to the lower end of its interval, clamped."""
    if gate.measured is None or gate.low is None:
        return UNKNOWN_NOISE
    return min(max(gate.measured - gate.low, LEAST_NOISE), MOST_NOISE)


@dataclass(frozen=True)
class GateVerdict:
    holds: bool
    sentence: str

    @classmethod
    def of(cls, gates: Sequence[GateResult]) -> GateVerdict:
        """Gates that cannot tell, or have nothing to compare with, are not counted among those that hold: the sentence names
        them."""
        if not gates:
            return cls(True, "No gate was set, so nothing was checked")
        lost, few, empty = (
            [gate.name.replace("_", " ") for gate in gates if gate.state == state]
            for state in ("missed", "too few to tell", "nothing to compare")
        )
        count = len(gates) - len(empty) - len(few)
        without = f"; too few items to tell: {', '.join(few)}" if few else ""
        without += f"; nothing to compare with yet: {', '.join(empty)}" if empty else ""
        if lost:
            verb = "is" if len(lost) == 1 else "are"
            return cls(False, f"{len(lost)} of {counted(count, 'gate')} {verb} missed: {', '.join(lost)}{without}")
        if not count:
            return cls(True, f"No gate was checked{without}")
        held = f"The other {counted(count, 'gate')} hold{'' if count > 1 else 's'}" if few else f"All {count} gates hold"
        return cls(True, (held if few or count > 1 else "The gate holds") + without)
