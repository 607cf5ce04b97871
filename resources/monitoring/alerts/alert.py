"""One alert: a cause, told once. It names ids, numbers and what to do, never what a user said."""

import hashlib
from datetime import datetime

from pydantic import BaseModel, Field


class Alert(BaseModel):
    kind: str
    """One of settings.KINDS, or `undelivered` for a channel that does not take alerts."""
    workload: str
    cause: str
    """Names what happened; two alerts of one cause are the same."""
    at: datetime
    title: str
    """One line."""
    text: str
    todo: str
    """What the person can do."""
    facts: dict[str, str | int | float] = Field(default_factory=dict)
    """Ids and numbers."""
    same_causes: list[str] = Field(default_factory=list, exclude=True)
    """Other names that this cause may have been told by."""

    @property
    def id(self) -> str:
        """16 hexadecimal digits."""
        return self._id_of(self.cause)

    @property
    def same_ids(self) -> set[str]:
        """Ids of all alerts that are about this cause, its own included."""
        return {self._id_of(cause) for cause in (self.cause, *self.same_causes)}

    def _id_of(self, cause: str) -> str:
        return hashlib.sha256(f"{self.workload}\n{self.kind}\n{cause}".encode()).hexdigest()[:16]
