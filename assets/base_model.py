"""base_model: the weights that fine-tuning starts from: a Hugging Face id, a directory (a model or an adapter), or `tiny`."""

import dagster as dg

from assets.overrides import BaseOverrides
from assets.presentation import shown
from assets.stage_asset import worker_asset
from model_ops.adapters import model_places
from model_ops.operations import ImportBaseSettings, TinyBaseSettings
from resources.stages import ModelPolicy
from resources.workshop import Workshop, outside_name


@worker_asset(sources=("model_ops/operations/tiny_base.py", "model_ops/operations/import_base.py"))
def base_model(
    context: dg.AssetExecutionContext,
    config: BaseOverrides,
    workshop: dg.ResourceParam[Workshop],
    base_name: dg.ResourceParam[str],
    base_revision: dg.ResourceParam[str],
    policy: dg.ResourceParam[ModelPolicy],
    tiny_settings: dg.ResourceParam[TinyBaseSettings],
) -> dg.MaterializeResult:
    """The model that fine-tuning starts from: a Hugging Face id, a directory, or `tiny`, which the run trains.

    A model of the Hub stays at the commit that it was imported from. A PEFT adapter is merged into the model that it was
    trained on. Every tensor is checked against the config. Lies in
    `models/<workload>/base_model/<version>/`, in the Hugging Face layout.
    """
    if base_name == "tiny":
        manifest = workshop.train("base_model", "tiny_base", config.applied_to(tiny_settings), {}, context)
    else:
        revision = workshop.commit_to_import(base_name, base_revision, config.revision)
        settings = ImportBaseSettings(model=base_name, revision=revision, mtp_layer=policy.drafter_from == "base_model")
        manifest = workshop.train(
            "base_model",
            "import_base",
            settings,
            {},
            context,
            outside=[outside_name(base_name, base_revision), *model_places(base_name)[1:]],
        )
    return shown(manifest, workshop)
