"""eval_suite: the items that training rows must not contain, and that the evaluation asks."""

import dagster as dg

from assets.presentation import shown
from assets.shortages import tell_shortages
from assets.stage_asset import stage_asset
from resources.composing import EvalSettings, build_eval_suite
from resources.workshop import Workshop


@stage_asset(sources=("resources/composing/eval_suite.py",), kinds={"parquet"})
def eval_suite(
    context: dg.AssetExecutionContext, workshop: dg.ResourceParam[Workshop], evals: dg.ResourceParam[dict[str, EvalSettings]]
) -> dg.MaterializeResult:
    """The recipe's evaluation suites as rows of prompt and answer, which training rows must not contain, and as tasks to ask.

    Made from the files under `evals:`. Lies in `datasets/<workload>/eval_suite/<version>/items.parquet`.
    """
    manifest = workshop.build(
        "dataset",
        "eval_suite",
        op="build_eval_suite",
        sources=("resources/composing/eval_suite.py",),
        config={name: settings.model_dump(mode="json", exclude={"uri", "answers"}) for name, settings in evals.items()},
        inputs=workshop.outside(
            {
                **{name: settings.uri for name, settings in evals.items()},
                **{f"{name} answers": settings.answers for name, settings in evals.items() if settings.answers},
            }
        ),
        work=lambda output: {"items": build_eval_suite(evals, output, notes=(notes := [])), "notes": notes},
    )
    tell_shortages(context, manifest)
    return shown(manifest, workshop)
