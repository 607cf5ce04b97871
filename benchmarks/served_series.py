"""Windows and sessions of a simulated endpoint: a cycle of the day, hours that drift together, windows that scatter."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from resources.monitoring.champions.evidence import MetricsWindow

PROMOTED = datetime(2026, 6, 8, 9, tzinfo=UTC)


def windows(
    rng: np.random.Generator,
    start: datetime,
    hours: int,
    *,
    tau: float = 2.5,
    fall: float = 0.0,
    falls_after_h: float = 0.0,
    cycle: float = 0.12,
    hourly: float = 0.03,
    together: float = 0.5,
    scatter: float = 0.045,
    drafts: int = 1_500,
    minutes: int = 5,
    errors: float = 0.0,
    requests: int = 60,
) -> list[MetricsWindow]:
    """fall: of tau, as a share of it, from an hour on. hourly: standard deviation of an hour's innovation, as a share;
    together: what an hour keeps of the one before. scatter: of a window. errors: share of requests."""
    count = hours * 60 // minutes
    hour = np.arange(count) * minutes / 60
    noise, state = np.empty(hours), rng.normal(0, hourly / np.sqrt(1 - together**2))
    for place in range(hours):
        state = noise[place] = together * state + rng.normal(0, hourly)
    of_day = (start.hour + hour) % 24
    taus = tau * (1 + cycle * np.sin(2 * np.pi * of_day / 24)) * (1 + noise[hour.astype(int)] + rng.normal(0, scatter, count))
    taus = np.maximum(1, taus * np.where(hour >= falls_after_h, 1 - fall, 1))
    made, failed = rng.poisson(drafts, count), rng.binomial(requests, errors, count)
    step = timedelta(minutes=minutes)
    return [
        MetricsWindow(
            start + step * place,
            start + step * (place + 1),
            int(made[place]),
            int(made[place] * (taus[place] - 1)),
            requests,
            int(failed[place]),
        )
        for place in range(count)
    ]


def sessions(
    rng: np.random.Generator,
    start: datetime,
    hours: int,
    *,
    per_hour: int = 40,
    broken: float = 0.02,
    failed: float = 0.01,
    refused: float = 0.01,
    disliked: float = 0.02,
) -> list[dict[str, Any]]:
    """Sessions of 1 to 5 answers, by their end. broken, failed, refused: shares of answers; disliked: of sessions."""
    shares = {"broken_answers": broken, "failed_answers": failed, "refusals": refused}
    found = []
    for hour in range(hours):
        for _ in range(rng.poisson(per_hour)):
            turns = int(rng.integers(1, 6))
            row = {name: rng.binomial(turns, share) / turns for name, share in shares.items()}
            found.append(
                {**row, "bad_feedback": float(rng.random() < disliked), "last": start + timedelta(hours=hour + rng.random())}
            )
    return sorted(found, key=lambda row: row["last"])
