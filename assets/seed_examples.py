"""seed_examples: curated or synthetic conversations that are mixed into the traffic."""

from pathlib import Path
from typing import Any

import dagster as dg

from assets.ownership import DATASETS, OWNERS
from assets.presentation import shown
from resources.artefacts.source_digest import source_digest
from resources.composing.seed_decontamination import drop_contaminated_seeds
from resources.composing.seeds import import_seeds
from resources.curating.curation import CurationSettings
from resources.reading.sources import SourceSettings
from resources.workshop.workshop import Workshop

SOURCES = ("resources/composing/seeds.py", "resources/composing/seed_decontamination.py")


@dg.asset(
    deps=["eval_suite"], group_name=DATASETS, kinds={"parquet"}, owners=OWNERS, code_version=source_digest(*SOURCES)[:12]
)
def seed_examples(
    workshop: dg.ResourceParam[Workshop],
    seeds: dg.ResourceParam[dict[str, SourceSettings]],
    curation_settings: dg.ResourceParam[CurationSettings],
) -> dg.MaterializeResult:
    """The recipe's seed conversations as rows of messages, written by people or synthetic, to be mixed into the traffic.

    Bad lines and leaked evaluation items are left out and counted. Made from the files under `seeds:` and `eval_suite`. Lies in
    `datasets/<workload>/seed_examples/<version>/seeds.parquet`.
    """
    places = {name: settings.uri for name, settings in seeds.items()}
    suite = workshop.current("dataset", "eval_suite")
    settings = curation_settings.decontamination

    def work(output: Path) -> dict[str, Any]:
        metrics = import_seeds(seeds, output).as_metrics()
        items = workshop.directory(suite) / "items.parquet"
        return {**metrics, "contaminated": drop_contaminated_seeds(output, items, settings)}

    manifest = workshop.build(
        "dataset", "seed_examples", op="import_seeds", sources=SOURCES,
        config={
            "seeds": {name: {"format": seed.format, "fields": seed.fields.given} if seed.fields else seed.format
                      for name, seed in sorted(seeds.items())},
            "decontamination": settings.model_dump(mode="json"),
        },
        inputs=[*workshop.outside(places), suite.as_input()], work=work,
    )
    return shown(manifest, workshop)
