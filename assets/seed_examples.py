"""seed_examples: curated or synthetic conversations that are mixed into the traffic."""

from pathlib import Path
from typing import Any

import dagster as dg

from assets.presentation import shown
from assets.stage_asset import stage_asset
from resources.composing import SeedSettings, SeedTombstones, drop_contaminated_seeds, drop_erased_seeds, import_seeds
from resources.curating import CurationSettings
from resources.workshop import Workshop

SOURCES = ("resources/composing/seeds.py", "resources/composing/seeds.py")


@stage_asset("eval_suite", sources=SOURCES, kinds={"parquet"})
def seed_examples(
    workshop: dg.ResourceParam[Workshop],
    seeds: dg.ResourceParam[dict[str, SeedSettings]],
    curation_settings: dg.ResourceParam[CurationSettings],
) -> dg.MaterializeResult:
    """The recipe's seed conversations as rows of messages, written by people or synthetic, to be mixed into the traffic.

    Bad lines, erased rows and leaked evaluation items are left out and counted. Made from the files and datasets under
    `seeds:`, and `eval_suite`. Lies in `datasets/<workload>/seed_examples/<version>/seeds.parquet`.
    """
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
        sources=SOURCES,
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
