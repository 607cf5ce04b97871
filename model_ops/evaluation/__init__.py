"""Measurements of a release: losses, recovery, acceptance of drafters, task scores, and the same models in a real server.

Start with `report.py`, which calls each part and writes report.json; `measurement.py` is the vocabulary that gates read."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.evaluation import measurement, row_tables
    from model_ops.evaluation.measurement import (
        ALL_SUITES,
        AS_LOGGED,
        CHAMPION,
        GREEDY,
        HELD_OUT,
        LEAST_GAIN,
        REFERENCE,
        TARGET,
        WITH_DRAFTER,
        Measurement,
        drafter_gain_low,
        drafter_low,
        find,
        in_a_server,
        measured_draftings,
        measurements_of,
        replayed_draftings,
    )
    from model_ops.evaluation.report import run
    from model_ops.evaluation.scored_pairs import ScoredPairs, missed_bounds, reward_report
    from model_ops.evaluation.settings import EvaluateSettings, EvaluationSettings
    from model_ops.evaluation.smoke.answers import SmokePrompt, SmokeResult
    from model_ops.evaluation.smoke.smoke_set import Scores, TriedServer, failures, run_smoke_set, schema_of

__getattr__, __dir__, __all__ = door(__name__, __file__)
