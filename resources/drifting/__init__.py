"""Compares each day of a workload's traffic with the reference window of the served release, by permutation tests over sessions
(table `drift`), with a stated number of false alarms a month (compare.py); served acceptance is watched on a CUSUM chart
(acceptance_chart.py). Alerts and decisions read the table. Start with drift.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.drifting.compare import f_quantile
    from resources.drifting.drift import DriftReport, compare_traffic, served_release
    from resources.drifting.page import plots, recent_rows, write_drift_page
    from resources.drifting.session_counts import DriftInputs
    from resources.drifting.settings import DriftSettings

__getattr__, __dir__, __all__ = door(__name__, __file__)
