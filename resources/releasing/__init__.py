"""What a release is judged and described by: gates over the evaluation's measurements (gates.py; bounds: releases/settings.py),
the champion that it is compared with, report, model card, and approval.html (approval_page.py), a file in its directory whose
path `millrace approve` and Dagster show; then its attestation. workshop/release_candidate.py calls them in order. push.py
packs a release and hands it out; verify_package.py is copied into each package and runs on machines without millrace. Approving
and serving are in endpoints/ and serving/. Start with gates.py and summary.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.releasing.approval_page import SIDE_BY_SIDE, WORST, write_approval_page
    from resources.releasing.attestations import attest, write_attestations
    from resources.releasing.champion import Champion, champion_to_beat
    from resources.releasing.charts import Bar, Cell, Dot, Period, bars, columns, dots, grid, lines, periods, short_number
    from resources.releasing.gates import GateInputs, check_gates
    from resources.releasing.push import package, push_release
    from resources.releasing.release_facts import Difference, ReleaseComparison, compare_releases, facts_of
    from resources.releasing.server_sections import rollout_series
    from resources.releasing.summary import Summary, read_evaluation, summarise
    from resources.releasing.version_card import write_version_card
    from resources.releasing.worth import quality_sentences, worth_of

__getattr__, __dir__, __all__ = door(__name__, __file__)
