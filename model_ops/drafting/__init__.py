"""Drafting without a trained network (n-gram and suffix lookup), acceptance of any drafter with intervals, and the choice of
what a server drafts with. Trained drafters are in `speculators`. Start with `acceptance.py`, then `measure_acceptance.py`."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.drafting.acceptance import (
        LARGEST_EXPONENT,
        AcceptanceRow,
        error_of,
        is_looping,
        moves,
        paired_gain,
        student,
        summarize,
        tau_of,
        variance,
    )
    from model_ops.drafting.drafting_choice import (
        P99_ABOVE,
        CurvePoint,
        DraftingChoice,
        MeasuredDrafting,
        Rate,
        ReplayResult,
        choose_by_replay,
        choose_in_server,
        varying_drafting,
    )
    from model_ops.drafting.drafts import LOOKUPS, NO_DRAFTING, Drafting, with_drafter
    from model_ops.drafting.measure_acceptance import AcceptanceRun, baselines, measure, replay
    from model_ops.drafting.suffix import SuffixCache

__getattr__, __dir__, __all__ = door(__name__, __file__)
