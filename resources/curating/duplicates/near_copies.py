"""Finds near copies that curation cannot see: seeds that repeat traffic, and copies in two splits where it keeps them. The same
signatures and the same similarity decide as in curation. Needs the relations of resources.composing.datasets.
"""

from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from resources.curating.curation import NearDuplicates
from resources.curating.duplicates.minhash import signatures, stamp
from resources.curating.duplicates.near_duplicates import Links, band_hashes, group_turns
from resources.lake import rows, run

NEAR_COPIES = pa.schema(
    [("row_id", pa.string()), ("rule", pa.string()), ("held_id", pa.string()), ("similarity", pa.float64())]
)
TRAIN = 2
"""Place of training rows; rows of a lower place (test, then validation) are kept instead of them."""
_COMPARED = pa.schema([("row_id", pa.string()), ("place", pa.int64())])


def near_copies(connection: duckdb.DuckDBPyConnection, settings: NearDuplicates) -> pa.Table:
    """Rows to leave out, with the row that each is a copy of. Where curation keeps near duplicates, only copies of rows of a
    more protected split are left out."""
    seeds = rows(connection, "composing/near_copies/seed_ids")
    if not len(seeds) and settings.enabled:
        return NEAR_COPIES.empty_table()
    signed = _signed_rows(connection, settings)
    copies = list(_repeated_seeds(connection, seeds, signed, settings)) if len(seeds) else []
    if not settings.enabled:
        copies += _across_splits(connection, signed, settings)
    return pa.Table.from_pylist(copies, schema=NEAR_COPIES)


class _Signed:
    """Curated rows with a signature: ids, conversations, places, and the bands as numbers."""

    def __init__(self, table: pa.Table, settings: NearDuplicates):
        self.ids, self.conversations = table["row_id"], table["conversation_id"]
        self.places = table["place"].to_numpy().astype(np.int64)
        self.bands = band_hashes(table["signature"].combine_chunks(), settings.bands)


def _signed_rows(connection: duckdb.DuckDBPyConnection, settings: NearDuplicates) -> _Signed:
    """Rows whose signature was made with these settings; curation refuses others where it compares them."""
    table = rows(connection, "composing/near_copies/signed_rows")
    lists = table["signature"].combine_chunks()
    marks = np.zeros(len(lists), dtype=np.int64)
    if len(lists):
        marks = lists.flatten().to_numpy(zero_copy_only=False)[lists.offsets.to_numpy()[:-1] - lists.offsets[0].as_py()]
    return _Signed(table.filter(pa.array(marks == stamp(settings))), settings)


def _repeated_seeds(
    connection: duckdb.DuckDBPyConnection, seeds: pa.Table, signed: _Signed, settings: NearDuplicates
) -> Iterator[dict[str, Any]]:
    turns = _turns(connection, seeds["row_id"])
    bands = band_hashes(signatures(turns["new_turn"], turns["answer"], settings), settings.bands)
    like = np.flatnonzero(_share_a_band(signed.bands, bands))
    traffic = signed.ids.take(pa.array(like))
    links = _linked(connection, [traffic, seeds["row_id"]], settings)
    for row in range(len(traffic), len(traffic) + len(seeds)):
        best = int(links.best[row])
        of_traffic = best < len(traffic)
        if best == row or not (settings.enabled or (of_traffic and signed.places[like[best]] < TRAIN)):
            continue
        yield {
            "row_id": seeds["row_id"][row - len(traffic)].as_py(),
            "rule": "near_duplicate_of_traffic" if of_traffic else "near_duplicate_of_seed",
            "held_id": (traffic[best] if of_traffic else seeds["row_id"][best - len(traffic)]).as_py(),
            "similarity": float(links.likeness[row]),
        }


def _across_splits(
    connection: duckdb.DuckDBPyConnection, signed: _Signed, settings: NearDuplicates
) -> Iterator[dict[str, Any]]:
    """Conversations with a turn that is nearly one of a more protected split."""
    held = signed.places < TRAIN
    like = np.zeros(len(held), dtype=bool)
    like[~held] = _share_a_band(signed.bands[~held], signed.bands[held])
    like[held] = _share_a_band(signed.bands[held], np.concatenate([signed.bands[like], signed.bands[held]]))
    chosen = np.flatnonzero(like)  # in order of place: the first row of a group is its most protected
    links = _linked(connection, [signed.ids.take(pa.array(chosen))], settings)
    for row, best in enumerate(links.best.tolist()):
        if signed.places[chosen[best]] < signed.places[chosen[row]]:
            yield {
                "row_id": signed.conversations[int(chosen[row])].as_py(),
                "rule": "near_copy_of_held_out",
                "held_id": signed.conversations[int(chosen[best])].as_py(),
                "similarity": float(links.likeness[row]),
            }


def _share_a_band(bands: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The rows of which a band's hash is that of another row."""
    shared = np.zeros(len(bands), dtype=bool)
    for band in range(bands.shape[1] if len(others) else 0):
        shared |= np.isin(bands[:, band], others[:, band])
    return shared


def _linked(connection: duckdb.DuckDBPyConnection, ids: list[pa.ChunkedArray], settings: NearDuplicates) -> Links:
    """Groups the turns of rows; of a group the first row is the best."""
    turns = _turns(connection, pa.chunked_array([chunk for each in ids for chunk in each.chunks], type=pa.string()))
    return group_turns(turns["new_turn"], turns["answer"], settings)


def _turns(connection: duckdb.DuckDBPyConnection, ids: pa.ChunkedArray) -> pa.Table:
    connection.register("compared", pa.table({"row_id": ids, "place": np.arange(len(ids))}).cast(_COMPARED))
    run(connection, "composing/near_copies/compared_turns")
    return rows(connection, "composing/near_copies/turns_in_order")
