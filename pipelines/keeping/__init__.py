"""Servers that stay: `millrace up` (supervisor.py) starts Dagster, capture and serving for a lake and restarts what ends;
`millrace ui` is webserver and daemon only; `millrace deploy` writes systemd units and a Compose file. keeper.py restarts
after pauses that grow, daemon_lock.py lets one daemon work on an instance. Start with supervisor.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.keeping.dagster_servers import serve, ui_lake
    from pipelines.keeping.deployment import write_deployment
    from pipelines.keeping.keeper import read_state, shown_state
    from pipelines.keeping.supervisor import location_errors, up
    from pipelines.keeping.up_servers import SET_BY_UP, UpSettings, serving_of

__getattr__, __dir__, __all__ = door(__name__, __file__)
