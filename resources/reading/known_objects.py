"""Which objects were read in their present state, as sorted hashes on disk: a sensor asks without reading the ledger.

    known = KnownObjects.of(tables, "math-tutor")
    known.lacks(listed, sources)            # the objects that are new or changed; nearly always none
    len(known)                              # objects that were read

The file <lake>/.remembered/known_objects/<workload>/<stamp>.npy is made anew when a commit changes the workload's part of the
ledger, and may be deleted. It is mapped into memory, so a thousand workloads with 100,000 objects each cost little. What lacks
here is looked up in the ledger itself; that two objects share a hash of 64 bits has a chance of one in 10^14 at 100,000
objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from model_ops.atomic_files import renamed_when_complete
from resources.reading.sources import LogObject, SourceSettings
from resources.slice_stamps import slice_stamp
from resources.sql_files import attach_slice, rows, workbench
from resources.tables import Tables

_EMPTY = np.empty(0, np.uint64)


class KnownObjects:
    """Hashes of one workload's objects."""

    def __init__(self, hashes: np.ndarray):
        self._hashes = hashes

    @classmethod
    def of(cls, tables: Tables, workload: str) -> KnownObjects:
        """Those of the ledger as it is now."""
        stamp = slice_stamp(tables, "objects", workload)
        if not stamp:
            return cls(_EMPTY)
        path = tables.lake.root / ".remembered" / "known_objects" / workload / f"{stamp}.npy"
        with suppress(OSError, ValueError):
            return cls(np.load(path, mmap_mode="r"))
        hashes = _of_ledger(tables, workload)
        _keep(path, hashes)
        return cls(hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def lacks(self, listed: Sequence[LogObject], sources: Mapping[str, SourceSettings]) -> list[LogObject]:
        """The listed objects that were not read as they are now with these settings."""
        if not len(self._hashes) or not listed:
            return list(listed)
        read_as = {name: source.read_as for name, source in sources.items()}
        found = np.fromiter((_hash(item, read_as[item.source]) for item in listed), np.uint64, len(listed))
        places = np.searchsorted(self._hashes, found)
        missing = self._hashes[np.minimum(places, len(self._hashes) - 1)] != found
        return [item for item, lacks in zip(listed, missing.tolist(), strict=True) if lacks]


def _hash(item: LogObject, read_as: str) -> int:
    """As reading/ledger/known_hashes.sql makes it."""
    text = f"{item.source}\n{item.uri}\n{item.etag}\n{item.bytes}\n{read_as}"
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[8:], "little")


def _of_ledger(tables: Tables, workload: str) -> np.ndarray:
    with workbench() as connection:
        attach_slice(connection, tables, "objects", workload)
        found = rows(connection, "reading/ledger/known_hashes")
    return np.sort(found["hash"].to_numpy())


def _keep(path: Path, hashes: np.ndarray) -> None:
    """Writes the file and removes those of earlier commits. A lake that cannot be written keeps none."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with renamed_when_complete(path) as temporary, temporary.open("wb") as file:
            np.save(file, hashes)
        for old in path.parent.glob("*.npy"):
            if old != path:
                old.unlink(missing_ok=True)
