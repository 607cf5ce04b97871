"""A release on disk: target and drafter (or an adapter on a base) by path and digest, the gates that it met, what it drafts
with, and its serving files. `write_release` writes one, `read_release` reads and checks one, `find_release` finds one by the
beginning of its version. Start with release.py, which also holds the recipe's `release` section; settings.py holds its gates
and watch. Gates are computed in releasing/, aliases and approvals are in endpoints/."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.releases import closed_times
    from resources.releases.adapter_form import FOLDER, adapter_problems
    from resources.releases.drafting_decision import ReportSection, decide_drafting, drafting_sections, form_of, read_choice
    from resources.releases.gate_result import ERASED_ROWS, GateResult, GateVerdict, gate_problem
    from resources.releases.release import (
        SHORTEST_SURE,
        NamedRelease,
        Part,
        Release,
        ReleaseError,
        ReleasePolicy,
        ReleaseRef,
        ReleaseSettings,
        UnknownReleaseError,
        UnsureNameError,
        erased_rows,
        find_release,
        read_release,
        write_release,
    )
    from resources.releases.settings import Gates, WatchSettings

__getattr__, __dir__, __all__ = door(__name__, __file__)
