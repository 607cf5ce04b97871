"""Before a training: `millrace plan` predicts memory and speed of a stage on given devices (training_plan.py), `check` and the
demo the seconds of all stages (stage_times.py). The model behind the numbers is in model_ops/planning."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.planning.stage_times import ModelSizes, Speed, TrafficSize, model_sizes, speed_of, stage_seconds
    from pipelines.planning.training_plan import METHODS, as_json, dataset_tokens, plan_recipe, planned_stage, print_plan

__getattr__, __dir__, __all__ = door(__name__, __file__)
