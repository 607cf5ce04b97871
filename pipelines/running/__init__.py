"""One run of a recipe: submission.py starts its process, run.py is that process, display.py shows it in the terminal,
outcome.py reads its end from Dagster's events. instance.py opens the lake's Dagster instance, daemon.py is Dagster's daemon
with what it leaves out. What a run consists of is in graph/. Start with submission.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.running.asking_to_retrain import preview_retraining, request_retraining
    from pipelines.running.display import follow
    from pipelines.running.instance import dagster_home, open_instance
    from pipelines.running.outcome import INTERRUPTED, Outcome
    from pipelines.running.submission import Run, submit

__getattr__, __dir__, __all__ = door(__name__, __file__)
