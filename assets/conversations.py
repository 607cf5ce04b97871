"""Conversations and items: evaluation suites, seeds, the mixed datasets with their splits, and what is drawn from them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from assets.ownership import DATASETS, OWNERS
from assets.presentation import changes, shown, tell_shortages
from assets.stage_asset import nothing_held_out_is_learnt, stage_asset
from resources.composing import (
    CalibrationSettings,
    DatasetSettings,
    EvalSettings,
    NamedDataset,
    SeedSettings,
    SeedTombstones,
    build_calibration,
    build_eval_suite,
    build_served_answers,
    drop_contaminated_seeds,
    drop_erased_seeds,
    import_seeds,
    sessions_in_two_splits,
)
from resources.curating import CurationSettings
from resources.digests import source_digest
from resources.stages import ModelPolicy
from resources.workshop import SFT_SOURCES, Workshop, make_sft_dataset


@stage_asset(sources=("resources/composing/eval_suite.py",), kinds={"parquet"})
def eval_suite(
    context: dg.AssetExecutionContext, workshop: dg.ResourceParam[Workshop], evals: dg.ResourceParam[dict[str, EvalSettings]]
) -> dg.MaterializeResult:
    """The recipe's evaluation suites as rows of prompt and answer, which training rows must not contain, and as tasks to ask.

    Made from the files under `evals:`. Lies in `datasets/<workload>/eval_suite/<version>/items.parquet`."""
    notes: list[str] = []
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
        work=lambda output: {"items": build_eval_suite(evals, output, notes=notes), "notes": notes},
    )
    tell_shortages(context, manifest)
    return shown(manifest, workshop)


SEED_SOURCES = ("resources/composing/seeds.py",)


@stage_asset("eval_suite", sources=SEED_SOURCES, kinds={"parquet"})
def seed_examples(
    workshop: dg.ResourceParam[Workshop],
    seeds: dg.ResourceParam[dict[str, SeedSettings]],
    curation_settings: dg.ResourceParam[CurationSettings],
) -> dg.MaterializeResult:
    """The recipe's seed conversations as rows of messages, written by people or synthetic, to be mixed into the traffic.

    Bad lines, erased rows and leaked evaluation items are left out and counted. Made from the files and datasets under
    `seeds:`, and `eval_suite`. Lies in `datasets/<workload>/seed_examples/<version>/seeds.parquet`."""
    places = {name: settings.uri for name, settings in seeds.items() if settings.uri}
    taken = {name: workshop.elsewhere(seed.dataset, seed.version) for name, seed in seeds.items() if seed.dataset}
    suite = workshop.current("dataset", "eval_suite")
    settings = curation_settings.decontamination
    erased = SeedTombstones.of(workshop.tables, workshop.workload)

    def work(output: Path) -> dict[str, Any]:
        home = workshop.lake.artefacts("dataset")
        datasets = {name: home / manifest.name / manifest.version for name, manifest in taken.items()}
        metrics = import_seeds(seeds, output, datasets, erased).as_metrics()
        metrics["erased_exchanges"] = drop_erased_seeds(output, workshop.tables, workshop.workload)
        items = workshop.directory(suite) / "items.parquet"
        return {**metrics, "contaminated": drop_contaminated_seeds(output, items, settings)}

    manifest = workshop.build(
        "dataset",
        "seed_examples",
        op="import_seeds",
        sources=SEED_SOURCES,
        config={
            "seeds": {
                name: seed.model_dump(exclude={"uri", "workloads", "dataset", "version"}, exclude_defaults=True)
                for name, seed in sorted(seeds.items())
            },
            "decontamination": settings.model_dump(mode="json"),
            **({"tombstones": erased.digest} if erased.digest else {}),
        },
        inputs=[
            *workshop.outside(places),
            suite.as_input(),
            *(manifest.as_input().model_copy(update={"pinned": True}) for manifest in taken.values()),
        ],
        work=work,
    )
    return shown(manifest, workshop)


@stage_asset("curated_interactions", "seed_examples", sources=SFT_SOURCES)
def sft_dataset(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    sft_dataset_settings: dg.ResourceParam[DatasetSettings],
    curation_settings: dg.ResourceParam[CurationSettings],
    seeds: dg.ResourceParam[dict[str, SeedSettings]],
    tokenizers: dg.ResourceParam[dict[str, Path]],
) -> dg.MaterializeResult:
    """Conversations to train on: curated traffic and seeds mixed by source, split into train, validation and test.

    All sessions of a user are in one split, so validation and test are never seen in training. Lies in
    `datasets/<workload>/sft_dataset/<version>/{train,validation,test}.parquet`, with a card in README.md."""
    manifest = make_sft_dataset(workshop, sft_dataset_settings, curation_settings, seeds, tokenizers)
    tell_shortages(context, manifest)
    return shown(manifest, workshop, **changes(manifest, workshop))


@dg.asset_check(asset="sft_dataset", blocking=True)
def no_session_in_two_splits(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """No session is in two splits, so that held-out sessions are never trained on. Blocks the next steps."""
    shared = sessions_in_two_splits(workshop.directory(workshop.current("dataset", "sft_dataset")))
    return dg.AssetCheckResult(passed=shared == 0, metadata={"sessions_in_two_splits": shared})


@dg.asset_check(asset="sft_dataset", blocking=True)
def nothing_held_out_is_in_training(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """No row that this dataset, or a dataset that its seeds come from, holds out is in training. Blocks the next steps."""
    return nothing_held_out_is_learnt(workshop, "dataset", "sft_dataset")


MADE_OF = ("curated_interactions", "seed_examples", "sft_dataset")


def named_dataset(prefix: Sequence[str], name: str) -> dg.AssetsDefinition:
    """The asset of one named dataset of a recipe. prefix: of its key, the workload."""

    @dg.asset(
        key=[*prefix, name],
        deps=[dg.AssetKey([*prefix, each]) for each in MADE_OF],
        group_name=DATASETS,
        kinds={"duckdb", "parquet"},
        owners=OWNERS,
        code_version=source_digest(*SFT_SOURCES)[:12],
        description=f"Conversations to train on, as datasets.named.{name} mixes and chooses them.\n\nHeld out is what "
        f"`sft_dataset` holds out. Lies in `datasets/<workload>/{name}/<version>/`, with a card in README.md.",
    )
    def named(
        context: dg.AssetExecutionContext,
        workshop: dg.ResourceParam[Workshop],
        sft_dataset_settings: dg.ResourceParam[DatasetSettings],
        named_dataset_settings: dg.ResourceParam[dict[str, NamedDataset]],
        curation_settings: dg.ResourceParam[CurationSettings],
        seeds: dg.ResourceParam[dict[str, SeedSettings]],
        tokenizers: dg.ResourceParam[dict[str, Path]],
    ) -> dg.MaterializeResult:
        manifest = make_sft_dataset(
            workshop, sft_dataset_settings, curation_settings, seeds, tokenizers, name, named_dataset_settings[name]
        )
        tell_shortages(context, manifest)
        return shown(manifest, workshop, **changes(manifest, workshop))

    return named


def named_dataset_checks(prefix: Sequence[str], name: str) -> list[dg.AssetChecksDefinition]:
    """The blocking checks of one named dataset: what those of sft_dataset hold."""
    asset = dg.AssetKey([*prefix, name])

    @dg.asset_check(asset=asset, blocking=True)
    def no_session_in_two_splits(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
        """No session is in two splits, so that held-out sessions are never trained on. Blocks the next steps."""
        shared = sessions_in_two_splits(workshop.directory(workshop.current("dataset", name)))
        return dg.AssetCheckResult(passed=shared == 0, metadata={"sessions_in_two_splits": shared})

    @dg.asset_check(asset=asset, blocking=True)
    def nothing_held_out_is_in_training(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
        """No row that this dataset, sft_dataset, or a dataset that their seeds come from, holds out is in training."""
        return nothing_held_out_is_learnt(workshop, "dataset", name)

    return [no_session_in_two_splits, nothing_held_out_is_in_training]


SERVED_SOURCES = ("resources/composing/served_answers.py",)


@stage_asset("sft_dataset", "interactions", sources=SERVED_SOURCES)
def served_answers(workshop: dg.ResourceParam[Workshop], policy: dg.ResourceParam[ModelPolicy]) -> dg.MaterializeResult:
    """How each logged answer was sampled (temperature, top_p, ...), and its exact token ids if the log has them.

    Token ids are kept only for rows in which no personal data was replaced. Made from `sft_dataset`, the named datasets that
    are trained on, and `interactions`, for the trainings. Lies in `datasets/<workload>/served_answers/<version>/` (Parquet)."""
    datasets = [workshop.current("dataset", name) for name in ("sft_dataset", *policy.named_datasets)]
    manifest = workshop.build(
        "dataset",
        "served_answers",
        op="build_served_answers",
        sources=SERVED_SOURCES,
        config={},
        inputs=[*(dataset.as_input() for dataset in datasets), workshop.slice("interactions", as_served=True)],
        work=lambda output: build_served_answers(
            workshop.tables, workshop.workload, [workshop.directory(dataset) for dataset in datasets], output
        ),
    )
    return shown(manifest, workshop)


CALIBRATION_SOURCES = ("resources/composing/calibration.py",)


@stage_asset("sft_dataset", sources=CALIBRATION_SOURCES)
def calibration_dataset(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    calibration_dataset_settings: dg.ResourceParam[CalibrationSettings],
    curation_settings: dg.ResourceParam[CurationSettings],
) -> dg.MaterializeResult:
    """Training rows of `sft_dataset`, drawn evenly over the prompt shapes, that quantization is calibrated with.

    Held-out rows are never among them. Lies in `datasets/<workload>/calibration_dataset/<version>/train.parquet`."""
    dataset = workshop.current("dataset", "sft_dataset")
    about = {"workload": workshop.workload, "name": "calibration_dataset", "pii": curation_settings.pii}
    manifest = workshop.build(
        "dataset",
        "calibration_dataset",
        op="build_calibration",
        sources=CALIBRATION_SOURCES,
        config={**calibration_dataset_settings.model_dump(mode="json"), "about": about},
        inputs=[dataset.as_input()],
        work=lambda output: build_calibration(workshop.directory(dataset), output, calibration_dataset_settings, about),
    )
    tell_shortages(context, manifest)
    return shown(manifest, workshop, **changes(manifest, workshop))
