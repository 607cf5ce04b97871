"""What Dagster runs: recipe_graph.py makes one recipe's assets, checks, jobs, schedules and sensors. A sensor only reads and
asks for runs; what it decides is computed in resources/. form_jobs.py are the jobs with a form in Dagster's UI, schedules.py
those that run by the clock or after a run. Start with recipe_graph.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.graph.recipe_graph import asset_of, definitions, recipe_assets, recipe_parts
    from pipelines.graph.schedules import daily_partitions, first_day

__getattr__, __dir__, __all__ = door(__name__, __file__)
