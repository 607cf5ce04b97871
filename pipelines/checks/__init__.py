"""`millrace check`: one file for each thing that a recipe depends on (base model, sources, packages and devices, the lake's
directory, lengths). A check yields findings, each a sentence with its remedy; it changes nothing. forecast.py predicts time,
memory, disk and money of a run, which `run` prints too. Start with check_recipe.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.checks.check_recipe import check, print_check
    from pipelines.checks.finding import leave
    from pipelines.checks.forecast import Forecast, forecast_of_run, keep_measured, print_forecast

__getattr__, __dir__, __all__ = door(__name__, __file__)
