"""Drops seeds that contain evaluation items.

    dropped = drop_contaminated_seeds(output, suite / "items.parquet", Decontamination())     # {"handmade": 3}

Replaces seeds.parquet atomically, and writes

    contaminated_seeds.parquet   row_id, source, source_uri, source_row, suite, item_id, part, share
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from resources.curating.clean import MACROS
from resources.curating.curation import Decontamination
from resources.curating.decontamination import find_items
from resources.curating.eval_items import read_eval_items
from resources.sql_files import attach_parquet, rows, run, stream, workbench, write_rows


def drop_contaminated_seeds(seeds: Path, eval_items: Path, settings: Decontamination) -> dict[str, int]:
    """Drops the seeds and returns their number by source. `seeds`: the directory that import_seeds filled."""
    items = read_eval_items(eval_items)
    if not settings.enabled or not len(items):
        return {}
    with workbench() as connection:
        attach_parquet(connection, "seeds", seeds / "seeds.parquet")
        connection.register("eval_items", items)
        for macro in MACROS:
            run(connection, macro)
        run(connection, "composing/seeds/searched_rows")
        find_items(connection, settings)
        counts = dict(run(connection, "composing/seeds/contaminated_by_source").fetchall())
        write_rows(stream(connection, "composing/seeds/contaminated"), seeds / "contaminated_seeds.parquet")
        if counts:
            kept = rows(connection, "composing/seeds/kept")
            write_rows(kept.to_reader(), seeds / "seeds.parquet", pq.read_schema(seeds / "seeds.parquet"))
    return counts
