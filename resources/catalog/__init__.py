"""The lake in SQL: `catalog.duckdb`, one small file of views over tables, datasets and releases. After each run a copy is
brought up to date and replaces it in one step. `ask` runs one query, which reads the lake's own rows and nothing else."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.catalog.build import publish, rebuild
    from resources.catalog.catalog import (
        CatalogError,
        LogLines,
        Page,
        Parameters,
        QueryResult,
        ask,
        descendants_of,
        find_artefact,
        lineage_of,
        log_lines_of,
        open_catalog,
    )
    from resources.catalog.comments import columns_of, comment_on
    from resources.catalog.enough_rows import count_records, shortage, why_empty
    from resources.catalog.locked_catalog import Limits, memory_gib
    from resources.catalog.why import RecordHistory, history_of

__getattr__, __dir__, __all__ = door(__name__, __file__)
