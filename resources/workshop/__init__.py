"""What an asset uses to make its artefact. `Workshop` holds one workload's lake, registry, launcher and settings; `build` makes
an artefact in this process, `train` in a worker, and both return the existing one if nothing changed. training_job.py says
what enters the version of a training, tracking.py sends metrics to TensorBoard, W&B or MLflow, release_candidate.py puts the
current models together as the next release. Of Dagster it uses only a step's context: assets/ turns manifests into results.
Start with workshop.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.workshop.release_candidate import RELEASE_SOURCES, make_release
    from resources.workshop.sft_datasets import SFT_SOURCES, make_sft_dataset
    from resources.workshop.tracking import TrackingKind, missing_package
    from resources.workshop.training_job import length_limits, outside_name
    from resources.workshop.workshop import Workshop

__getattr__, __dir__, __all__ = door(__name__, __file__)
