"""The lake in SQL: `catalog.duckdb`, one small file of views over tables, datasets and releases, replaced as a whole after each
run (build.py). `ask` runs one statement with read access to the lake's own rows and nothing else (locked_catalog.py). why.py
follows one request or log line from its record to the endpoint; catalog.py finds artefacts and their lineage. A column
has the sentence of its Arrow schema, one that SQL makes anew has its own in comments.py.
"""

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
        find_artefact,
        lineage_of,
        log_lines_of,
        made_from,
        open_catalog,
    )
    from resources.catalog.column_lineage import columns_of
    from resources.catalog.comments import comment_on
    from resources.catalog.enough_rows import count_records, shortage, why_empty
    from resources.catalog.locked_catalog import Limits, memory_gib
    from resources.catalog.why import RecordHistory, history_of

__getattr__, __dir__, __all__ = door(__name__, __file__)
