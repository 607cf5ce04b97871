"""What an endpoint serves, and who decided so. endpoint_log.py is the append-only log of one endpoint, signed if a key is set;
endpoints.py moves its aliases (candidate, champion, previous, further ones) by compare-and-swap. Nominations, approvals,
promotions, withdrawals and rollbacks are entries, each with who and why. approvals.py and rollback.py check a release again
(release_checks.py) before it is served. It starts no server: serving/ follows the aliases. Start with approvals.py.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.endpoints.actor import AUTOMATIC, Actor, ActorError
    from resources.endpoints.approvals import (
        Approvals,
        approvals_of,
        approve,
        approve_release,
        approved_by,
        check_digest,
        promote_to,
        withdraw,
    )
    from resources.endpoints.endpoint_log import EndpointLog, EndpointLogEntry, EndpointLogError
    from resources.endpoints.endpoints import Aliases, Endpoint, EndpointError, standing, workloads_with_endpoints
    from resources.endpoints.release_checks import disagreements, recheck, recheck_unsigned, superseded
    from resources.endpoints.rollback import champions_before, roll_back, rollback_of, rollback_target, taint_of

__getattr__, __dir__, __all__ = door(__name__, __file__)
