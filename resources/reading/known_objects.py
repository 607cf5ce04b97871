"""Which objects were read in their present state, as sorted hashes on disk: a sensor asks without reading the ledger.

    known = KnownObjects.of(tables, "math-tutor")
    known.lacks(listed, sources)            # the objects that are new or changed; nearly always none
    known.ends["gateway"]                   # the uri after which the last END objects of a source come
    len(known)                              # objects that were read

The files <lake>/.remembered/known_objects/<workload>/<stamp>.npy and .json are made anew when a commit changes the workload's
part of the ledger, and may be deleted. The hashes are mapped into memory, so a thousand workloads with 100,000 objects each
cost little. What lacks here is looked up in the ledger itself; that two objects share a hash of 64 bits has a chance of one in
10^14 at 100,000 objects.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from model_ops.atomic_files import renamed_when_complete, write_text
from resources.reading.listing import LogObject
from resources.reading.sources import SourceSettings
from resources.slice_stamps import slice_stamp
from resources.sql_files import attach_slice, rows, run, workbench
from resources.tables import Tables

END = 50
"""Objects at the end of a source, where writers that name objects by time put new ones."""
_EMPTY = np.empty(0, np.uint64)


class KnownObjects:
    """Hashes of one workload's objects."""

    def __init__(self, hashes: np.ndarray, ends: Mapping[str, str]):
        self._hashes, self.ends = hashes, ends

    @classmethod
    def of(cls, tables: Tables, workload: str) -> KnownObjects:
        """Those of the ledger as it is now."""
        stamp = slice_stamp(tables, "objects", workload)
        if not stamp:
            return cls(_EMPTY, {})
        path = tables.lake.root / ".remembered" / "known_objects" / workload / f"{stamp}.npy"
        with suppress(OSError, ValueError):
            return cls(np.load(path, mmap_mode="r"), json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))
        hashes, ends = _of_ledger(tables, workload)
        _keep(path, hashes, ends)
        return cls(hashes, ends)

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


def _of_ledger(tables: Tables, workload: str) -> tuple[np.ndarray, dict[str, str]]:
    with workbench() as connection:
        attach_slice(connection, tables, "objects", workload)
        found = rows(connection, "reading/ledger/known_hashes")
        ends = dict(run(connection, "reading/ledger/ends", count=END).fetchall())
    return np.sort(found["hash"].to_numpy()), ends


def _keep(path: Path, hashes: np.ndarray, ends: Mapping[str, str]) -> None:
    """Writes the files and removes those of earlier commits. A lake that cannot be written keeps none."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path.with_suffix(".json"), json.dumps(ends))
        with renamed_when_complete(path) as temporary, temporary.open("wb") as file:
            np.save(file, hashes)
        for old in path.parent.glob("*.*"):
            if old.stem != path.stem and not old.name.startswith("."):
                old.unlink(missing_ok=True)
