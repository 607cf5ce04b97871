"""What the assets of this folder have in common: how one is declared, what a training reads, and the check of held-out rows.

@stage_asset("eval_suite", sources=("resources/composing/eval_suite.py",))       # made in the step's own process
@worker_asset(parent_of("rft_model"), "rl_prompts", "length_report")            # made by the worker, from models and rows"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import dagster as dg

from assets.ownership import OWNERS, WORKER_POOL
from resources.composing import held_out_in_training
from resources.digests import source_digest
from resources.manifests import Kind, Manifest
from resources.stages import ModelPolicy, stage
from resources.workshop import Workshop

Declared = Callable[[Callable[..., Any]], dg.AssetsDefinition]


def stage_asset(*deps: str, sources: Sequence[str], kinds: Collection[str] = ("duckdb", "parquet"), **given: Any) -> Declared:
    """Declares a stage's asset under the function's name. deps: what it may read. sources: files whose code makes it. given:
    further arguments of dg.asset."""

    def declared(function: Callable[..., Any]) -> dg.AssetsDefinition:
        return dg.asset(
            deps=list(deps),
            group_name=stage(function.__name__).group,
            kinds=set(kinds),
            owners=OWNERS,
            code_version=source_digest(*sources)[:12],
            **given,
        )(function)

    return declared


def worker_asset(*deps: str, kind: Kind = "model", sources: Sequence[str] = ()) -> Declared:
    """Declares a stage that the worker makes, by the operation that its stage names. sources: where the operation lies, if not
    in a file of its name."""

    def declared(function: Callable[..., Any]) -> dg.AssetsDefinition:
        code = sources or (f"model_ops/operations/{stage(function.__name__).operation}.py",)
        kinds = ("pytorch", "huggingface" if kind == "model" else "parquet")
        return stage_asset(*deps, sources=code, kinds=kinds, pool=WORKER_POOL)(function)

    return declared


def learnt_inputs(workshop: Workshop, policy: ModelPolicy, name: str) -> dict[str, Manifest]:
    """What a training reads, by role in its job: the model that it starts from, its rows, and what goes with them."""
    declared, rows = stage(name), policy.rows_of(name)
    inputs = {declared.takes_model_as: workshop.current("model", policy.source_of(name))}
    inputs["prompts" if rows == "rl_prompts" else "dataset"] = workshop.current("dataset", rows)
    if declared.rows == "sft_dataset" and rows != "teacher_answers":  # served token ids say nothing of a teacher's answers
        inputs["served"] = workshop.current("dataset", "served_answers")
    if name in policy.graded_by_reward_model:
        inputs["reward_model"] = workshop.current("model", "reward_model")
    return inputs


def held_out_check(asset: str) -> dg.AssetChecksDefinition:
    """The blocking check that no dataset in the ancestry of a model trains on a row that one of them holds out."""

    @dg.asset_check(
        asset=asset,
        name=f"{asset}_learnt_nothing_held_out",
        blocking=True,
        description="No dataset in the model's ancestry trains on a row that one of them holds out. Blocks the next steps.",
    )
    def learnt_nothing_held_out(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
        return nothing_held_out_is_learnt(workshop, "model", asset)

    return learnt_nothing_held_out


def nothing_held_out_is_learnt(workshop: Workshop, kind: Kind, name: str) -> dg.AssetCheckResult:
    """The result of the check for the current version of an artefact."""
    leaks = held_out_in_training(workshop.lake, workshop.current(kind, name))
    return dg.AssetCheckResult(
        passed=not leaks,
        description="; ".join(map(str, leaks)) or None,
        metadata={"held_out_rows_in_training": sum(leak.rows for leak in leaks)},
    )
