"""Datasets, models and releases as versioned directories. `Registry` makes a draft, finishes it under the version that its
inputs, settings and code give, and finds the current one; an artefact that exists is not made again. current.py says what is
current or stale and why, ancestry.py what an artefact was made from, taint.py which weights learnt erased rows, leftovers.py
removes unfinished ones. The record itself is in manifests/. Start with registry.py.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.artefacts.ancestry import behind, front_matter, home_of, licences_of
    from resources.artefacts.current import (
        ARTEFACTS,
        StaleInput,
        current_manifests,
        outdated_behind,
        stale_inputs,
        step_of,
        up_to_date,
        warm_start_parent,
    )
    from resources.artefacts.leftovers import keep_seconds, remove_leftovers
    from resources.artefacts.registry import ArtefactDraft, Registry
    from resources.artefacts.taint import Cause, Taint, keep_taint, rows_erased_from, tainted

__getattr__, __dir__, __all__ = door(__name__, __file__)
