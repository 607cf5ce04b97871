"""`millrace status` and `millrace decisions`, and the end of `millrace run`: what is current or stale and why, what runs, what
an endpoint waits for, the next command to type. lake_status.py gathers, *_text.py prints. planned_versions.py computes the
version that each stage would have now, without making anything."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.status.closing import print_closing
    from pipelines.status.decisions_text import decisions_json, print_decisions, print_requests
    from pipelines.status.lake_status import status_of
    from pipelines.status.status_text import print_status
    from pipelines.status.workload_names import known_workload, workloads_of

__getattr__, __dir__, __all__ = door(__name__, __file__)
