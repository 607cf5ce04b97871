"""The loop of `resources.drifting.acceptance_chart`. Import this module inside functions only: it loads numba."""

import numpy as np

from model_ops.machine import compiled


@compiled
def alarms_in(series: np.ndarray, bound: float) -> np.ndarray:
    """Alarms of each of several series [series, steps], charted from 0."""
    alarms = np.zeros(len(series), np.int64)
    for row in range(len(series)):
        total = 0.0
        for step in range(series.shape[1]):
            total = max(0.0, total + series[row, step])
            if total > bound:
                alarms[row] += 1
                total = 0.0
    return alarms
