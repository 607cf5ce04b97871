"""Looks at logs before anything is built, for `millrace inspect`, `init` and `check`; it writes nothing into a lake. Start with
inspection.py; overview.py is the first look of seconds, source_survey.py finds what a recipe should name as sources."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.inspecting.findings import Inspection, Verdict
    from resources.inspecting.inspection import InspectError, inspect, proposal_text
    from resources.inspecting.inspection_page import day_bars, headline, sections, write_page
    from resources.inspecting.overview import REMEDY, FirstLook, far_days, first_look
    from resources.inspecting.rehearsal import MEASURED_ROWS, Asked, Rehearsal, rehearse
    from resources.inspecting.source_survey import SourceProposal, name_of, survey

__getattr__, __dir__, __all__ = door(__name__, __file__)
