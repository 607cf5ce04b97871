"""Compares each day of a workload's traffic with the reference window of the served release, by permutation tests over
sessions, and writes every value into the table `drift`. A stated number of false alarms a month is kept over all tests and
windows (compare.py). Served acceptance is watched on a CUSUM chart (acceptance_chart.py). Alerts and decisions read the
table; nothing is sent or retrained here. Start with drift.py; session_counts.py says what each test counts.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.drifting.dispersion import f_quantile
    from resources.drifting.drift import DriftReport, compare_traffic
    from resources.drifting.page import plots, recent_rows, write_drift_page
    from resources.drifting.release_reference import served_release
    from resources.drifting.session_counts import DriftInputs
    from resources.drifting.settings import DriftSettings

__getattr__, __dir__, __all__ = door(__name__, __file__)
