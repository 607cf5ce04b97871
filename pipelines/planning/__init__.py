"""Before a training: `millrace plan` predicts memory and speed of a stage on given devices, `millrace sweep` tries learning
rates in short trainings. stage_times.py predicts the seconds of all stages for `check` and the demo. The model behind the
numbers is in model_ops/planning.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.planning.rate_sweep import SweepError, print_sweep, rates_around, read_rates, sweep, swept_stage
    from pipelines.planning.stage_times import ModelSizes, Speed, TrafficSize, model_sizes, speed_of, stage_seconds
    from pipelines.planning.training_plan import METHODS, as_json, dataset_tokens, plan_recipe, planned_stage, print_plan

__getattr__, __dir__, __all__ = door(__name__, __file__)
