"""Makes the datasets of conversations that stages are trained on: `sft_dataset`, and those of `datasets.named`.

make_sft_dataset(workshop, dataset_settings, curation_settings, seeds, tokenizers)
make_sft_dataset(workshop, dataset_settings, curation_settings, seeds, tokenizers, "best", named_datasets["best"])"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resources.composing import DatasetSettings, NamedDataset, SeedSettings, build_sft_dataset, lent_by, vocabularies
from resources.curating import CurationSettings
from resources.manifests import Manifest
from resources.workshop.workshop import Workshop

SFT_SOURCES = ("resources/composing/datasets.py",)


def make_sft_dataset(
    workshop: Workshop,
    settings: DatasetSettings,
    curation: CurationSettings,
    seeds: Mapping[str, SeedSettings],
    tokenizers: Mapping[str, Path],
    name: str = "sft_dataset",
    asked: NamedDataset | None = None,
) -> Manifest:
    """asked: of a named dataset; it holds out what `sft_dataset` holds out, and no row lends for it."""
    curated, examples = (workshop.current("dataset", each) for each in ("curated_interactions", "seed_examples"))
    about = {
        "workload": workshop.workload,
        "name": name,
        "pii": curation.pii,
        "licences": {source: seed.licence for source, seed in seeds.items()},
    }
    config, inputs, earlier = {}, [curated.as_input(), examples.as_input()], []
    lent: dict[str, list[str]] | None
    if asked is None:
        versions = workshop.registry.versions("dataset", name)
        lent, earlier = lent_by(version.metrics for version in versions), [workshop.directory(each) for each in versions]
    else:
        sft, settings = workshop.current("dataset", "sft_dataset"), asked.as_dataset(settings)
        lent, about["key"] = sft.metrics.get("lent"), f"datasets.named.{name}"
        config["only"] = asked.only.model_dump(mode="json")
        inputs.append(sft.as_input())
    near = curation.near_duplicates
    config = {**settings.model_dump(mode="json"), **config, "near_duplicates": near.model_dump(mode="json"), "about": about}

    def work(output: Path) -> dict[str, Any]:
        files = workshop.directory(curated) / "curated.parquet", workshop.directory(examples) / "seeds.parquet"
        only = asked and asked.only
        return build_sft_dataset(
            *files, output, settings, workshop.tables, near, lent, about, only, earlier, tokenizers
        ).as_metrics()

    config |= vocabularies(tokenizers)
    return workshop.build("dataset", name, op="build_sft_dataset", sources=SFT_SOURCES, config=config, inputs=inputs, work=work)
