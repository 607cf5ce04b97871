"""A lake on a disk or in a bucket: its layout, its Delta tables and their columns, SQL files over slices of them, and who may
work on it at a time. It knows nothing of what rows mean."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.lake.lake import LakeLayout
    from resources.lake.lake_use import LakeInUse, alone, at_work
    from resources.lake.schemas import PARTITIONS, SCHEMAS
    from resources.lake.sql_files import (
        SQL,
        attach_files,
        attach_parquet,
        attach_slice,
        create_view,
        naming_damage,
        rows,
        run,
        sections,
        slice_files,
        sql_text,
        stream,
        workbench,
        write_rows,
    )
    from resources.lake.tables import MANY_FILES, Tables, slice_stamp, sql_literal
    from stores.lake_error import LakeError

__getattr__, __dir__, __all__ = door(__name__, __file__)
