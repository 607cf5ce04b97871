"""Windows and sessions of a simulated endpoint: a cycle of the day, hours that drift together, windows that scatter."""

from datetime import UTC, datetime, timedelta

import numpy as np

from resources.watching.blocks import Window

PROMOTED = datetime(2026, 6, 8, 9, tzinfo=UTC)


def windows(rng, start, hours, *, tau=2.5, fall=0.0, falls_after_h=0.0, cycle=0.12, hourly=0.03, together=0.5, scatter=0.045,
            drafts=1_500, minutes=5, errors=0.0, requests=60):
    """fall: of tau, as a share of it, from an hour on. hourly: standard deviation of an hour's innovation, as a share; together:
    what an hour keeps of the one before. scatter: of a window. errors: share of requests."""
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
    return [Window(start + step * place, start + step * (place + 1), int(made[place]), int(made[place] * (taus[place] - 1)), requests,
                   int(failed[place])) for place in range(count)]


def sessions(rng, start, hours, *, per_hour=40, broken=0.02, failed=0.01, refused=0.01, disliked=0.02, alike=0.0):
    """Sessions of 1 to 5 answers. broken, failed, refused: shares of answers; disliked: of sessions. alike: share of the bad
    answers that come in hours of their own, as an outage brings them."""
    found = []
    for hour in range(hours):
        bad_hour = rng.random() < 0.1
        for _ in range(rng.poisson(per_hour)):
            turns = int(rng.integers(1, 6))
            share = {name: (1 - alike) * level + alike * 10 * level * bad_hour
                     for name, level in (("broken_answers", broken), ("failed_answers", failed), ("refusals", refused))}
            row = {name: rng.binomial(turns, min(1, level)) / turns for name, level in share.items()}
            found.append(row | {"bad_feedback": float(rng.random() < disliked), "last": start + timedelta(hours=hour + rng.random())})
    return sorted(found, key=lambda row: row["last"])
