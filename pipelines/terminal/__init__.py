"""Output on a terminal that all commands share: consoles, tables, JSON, CSV and files of rows, and the options that several
commands have (shared_options.py). Texts from logs are escaped before they are printed."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.terminal.inspection_text import print_inspection
    from pipelines.terminal.printing import (
        MOST_ROWS,
        Rows,
        format_of,
        print_lineage,
        print_rows,
        require_file_place,
        write_arrow_stream,
        write_rows_file,
    )
    from pipelines.terminal.shared_options import (
        HostOption,
        KeysOption,
        LakeOption,
        LimitOption,
        OutputFormat,
        PageOption,
        RecipeArgument,
        ReportFormat,
        RowFormat,
        VerticalOption,
        WidthOption,
        app,
        console,
        errors,
        open_lake,
        print_line,
        say,
        say_error,
        wrap_words,
    )
    from pipelines.terminal.tables import print_table, shorten, text_table

__getattr__, __dir__, __all__ = door(__name__, __file__)
