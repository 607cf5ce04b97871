"""`millrace lineage`: the tree of an artefact, and the log lines or users behind it."""

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from model_ops.jobs import counted
from pipelines.asking.bounded import Bounds
from pipelines.asking.sql_answer import print_answer
from pipelines.terminal import OutputFormat, print_lineage
from resources.catalog import LogLines, QueryResult, descendants_of, lineage_of, log_lines_of
from resources.lake import LakeLayout, sql_text

LISTS = {"log-lines": "catalog/queries/log_lines_of", "users": "catalog/queries/users_of"}
"""SQL that lists what is behind an artefact."""


def print_tree(
    lake: LakeLayout, artefact: str, format: OutputFormat, console: Console, width: int | None, downwards: bool
) -> None:
    """Prints what an artefact was made from, or downwards what was made from it. Raises CatalogError for an unknown one."""
    edges = descendants_of(lake, artefact) if downwards else lineage_of(lake, artefact)
    print_lineage(edges, format.value, console, width, downwards)
    if format is not OutputFormat.table:
        return
    if downwards:
        if not edges.num_rows:
            _say(f"Nothing was made from {artefact} yet.", console)
        return
    lines = log_lines_of(lake, artefact)
    _say(f"Behind it: {_counts(lines)}. They are listed by --to log-lines and --to users.", console)


def print_origin(
    lake: LakeLayout, artefact: str, origin: str, show: Callable[[QueryResult], None], console: Console, quiet: bool
) -> None:
    """Lists the log lines or hashed users behind an artefact. quiet: without the counts. Raises CatalogError."""
    lines = log_lines_of(lake, artefact)
    print_answer(lake, sql_text(LISTS[origin]), {"artefact": lines.artefact}, Bounds(), show)
    if not quiet:
        _say(f"Behind {lines.artefact}: {_counts(lines)}.", console)


def _counts(lines: LogLines) -> str:
    return (
        f"{counted(lines.interactions, 'interaction')} from {counted(lines.objects, 'log object')} and "
        f"{counted(lines.users, 'hashed user')}"
    )


def _say(text: str, console: Console) -> None:
    console.print(Text(text), soft_wrap=True, highlight=False)
