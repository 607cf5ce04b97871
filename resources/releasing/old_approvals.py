"""Reads approvals that an earlier version wrote: one file per release, replaced by each new decision.

    old_approvals(lake, "math-tutor")       # oldest first, as fields of log entries

`<lake>/endpoints/approvals/<workload>/<version>.json`. They count as entries, and are copied into the endpoint's log with its
next entry; the files stay.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ValidationError

from resources.lake import Lake
from resources.releasing.endpoint_log import EndpointLogError


class OldApproval(BaseModel):
    """An approval file of an earlier version."""

    release: str
    digest: str
    by: str
    at: datetime
    withdrawn: bool = False


def old_approvals(lake: Lake, workload: str) -> list[dict[str, Any]]:
    """The fields of an entry for each file. Raises EndpointLogError for a file that cannot be read."""
    found = []
    for path in sorted((lake.root / "endpoints" / "approvals" / workload).glob("*.json")):
        try:
            old = OldApproval.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, ValidationError) as error:
            raise EndpointLogError(
                f"{path} cannot be read as an approval: restore it from a copy, or delete it and approve again"
            ) from error
        found.append({
            "at": old.at, "by": old.by, "identity_from": "earlier version", "workload": workload, "release": old.release,
            "digest": old.digest, "action": "withdrawn" if old.withdrawn else "approved",
        })
    return sorted(found, key=lambda fields: fields["at"])
