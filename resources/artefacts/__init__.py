"""Datasets, models and releases as versioned directories. `Registry` makes a draft, finishes it under the version that its
inputs, settings and code give, and finds the current one; an artefact that exists is not made again. Start with registry.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.artefacts.leftovers import keep_seconds, remove_leftovers
    from resources.artefacts.registry import (
        ARTEFACTS,
        ArtefactDraft,
        Registry,
        StaleInput,
        current_manifests,
        outdated_behind,
        stale_inputs,
        step_of,
        up_to_date,
        warm_start_parent,
    )
    from resources.artefacts.taint import (
        Cause,
        Taint,
        behind,
        find_taints,
        front_matter,
        home_of,
        keep_taint,
        licences_of,
        rows_erased_from,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)
