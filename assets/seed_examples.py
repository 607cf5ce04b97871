"""seed_examples: curated or synthetic conversations that are mixed into the traffic."""

import dagster as dg

from assets.ownership import DATASETS, OWNERS
from assets.presentation import shown
from resources.seeds import import_seeds
from resources.source_digest import source_digest
from resources.sources import SourceSettings
from resources.workshop import Workshop


@dg.asset(
    group_name=DATASETS, kinds={"parquet"}, owners=OWNERS, code_version=source_digest("resources/seeds.py")[:12]
)
def seed_examples(
    workshop: dg.ResourceParam[Workshop], seeds: dg.ResourceParam[dict[str, SourceSettings]]
) -> dg.MaterializeResult:
    """Every seed file of the recipe as rows of messages; a bad line is counted and named, never silently dropped."""
    places = {name: settings.uri for name, settings in seeds.items()}
    manifest = workshop.build(
        "dataset", "seed_examples", op="import_seeds", sources=("resources/seeds.py",), config={"seeds": sorted(seeds)},
        inputs=workshop.outside(places),
        work=lambda output: import_seeds(places, output).as_metrics(),
    )
    return shown(manifest, workshop)
