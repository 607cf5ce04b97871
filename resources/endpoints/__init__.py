"""What an endpoint serves, and who decided so. endpoint_log.py is the append-only log of one endpoint, signed if a key is set;
endpoints.py moves its aliases (candidate, champion, previous, further ones) by compare-and-swap. Nominations, approvals,
promotions, withdrawals and rollbacks are entries, each with who and why. approvals.py checks a release again
before it is served. It starts no server: serving/ follows the aliases. Start with approvals.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.endpoints.approvals import (
        Approvals,
        approvals_of,
        approve_release,
        approved_by,
        champions_before,
        check_digest,
        disagreements,
        promote_to,
        recheck,
        recheck_unsigned,
        record_approval,
        roll_back,
        rollback_of,
        rollback_target,
        stale_parts,
        taint_of,
        withdraw,
    )
    from resources.endpoints.endpoint_log import AUTOMATIC, Actor, ActorError, EndpointLog, EndpointLogEntry, EndpointLogError
    from resources.endpoints.endpoints import Aliases, Endpoint, EndpointError, standing, workloads_with_endpoints

__getattr__, __dir__, __all__ = door(__name__, __file__)
