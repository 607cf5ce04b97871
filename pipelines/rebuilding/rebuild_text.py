"""Prints what `millrace rebuild` found."""

from __future__ import annotations

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from model_ops.wording import counted
from pipelines.rebuilding.rebuild import Rebuilt
from pipelines.terminal.printing import print_rows
from resources.plain_text import visible

_COLUMNS = pa.schema([("file", pa.string()), ("bytes_of_the_second", pa.string())])


def print_rebuilt(rebuilt: Rebuilt, format: str, console: Console, kept: bool) -> bool:
    """Prints the comparison file by file. kept: whether the second artefact stays. Returns whether the bytes match."""
    rows = [{"file": file.path, "bytes_of_the_second": file.comparison} for file in rebuilt.files]
    print_rows(pa.Table.from_pylist(rows, schema=_COLUMNS), format, console)
    if format == "table":
        name = f"{rebuilt.first.name}@{rebuilt.first.version}"
        compared = [file for file in rebuilt.files if file.comparison != "record of the run"]
        others = sum(file.comparison != "same" for file in compared)
        said = (f"{name} was made again: {counted(len(compared), 'file')}, every byte the same" if rebuilt.matches else
                f"{name} was made again, and {counted(others, 'file')} of {len(compared)} are not the same")
        console.print(Text(visible(f"{said}. It is in {rebuilt.directory}" if kept else f"{said}.")), soft_wrap=True)
    return rebuilt.matches
