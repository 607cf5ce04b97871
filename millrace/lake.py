"""A lake, opened for reading: SQL, tables, datasets, lineage. Reading takes no lock and works while a run is writing.

lake = millrace.open("lake")
lake.table("interactions").select("dt", "model")        # lazy: reads the columns and days that a query needs"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from millrace.errors import Error, public

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from pipelines.running import Run
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


Parameters = Sequence[Any] | Mapping[str, Any] | None
"""Values of `?`, in order, or of `$name`, by name."""
Split = Literal["train", "validation", "test"]


@public
def open_lake(path: str | Path) -> Lake:
    """Opens a lake that a run has made. Raises Error if there is none. >>> lake = millrace.open_lake("lake")"""
    from resources.lake import LakeLayout as Place

    return Lake(Place.open(path, create=False))


open = open_lake
"""The same under a shorter name: millrace.open("lake")."""


class Lake:
    """An existing lake, as `open_lake` returns it."""

    def __init__(self, place: Any):
        self._place = place
        self.path: Path = place.root
        """The lake's directory, absolute; of a lake in a bucket, the directory of its mirror."""

    def __repr__(self) -> str:
        return f"millrace.open_lake({self._place.place!r})"

    @overload
    def sql(
        self, query: str, parameters: Parameters = ..., *, timeout: float = ..., memory_gib: float | None = ...
    ) -> pl.DataFrame: ...
    @overload
    def sql(
        self,
        query: str,
        parameters: Parameters = ...,
        *,
        arrow: Literal[True],
        timeout: float = ...,
        memory_gib: float | None = ...,
    ) -> pa.Table: ...

    @public
    def sql(
        self,
        query: str,
        parameters: Parameters = None,
        *,
        arrow: bool = False,
        timeout: float = 300.0,
        memory_gib: float | None = None,
    ) -> pl.DataFrame | pa.Table:
        """The rows of one query in DuckDB's SQL, as a Polars frame, or with `arrow=True` as an Arrow table.

        `from relations` lists the tables and views, `from relation_columns` their columns. The query can read only the lake and
        changes nothing. parameters: values of `?` or `$name` in the query. timeout: in seconds, 0 for none. memory_gib: 4 GiB,
        or half of the machine's memory if that is less; on Linux, the whole process may take that and 1 GiB more while the
        query runs. Raises Error with DuckDB's message for an invalid query, for one that needs more time or memory, and for a
        result that a frame cannot hold, such as two columns of one name.

        >>> lake.sql("select count(*) as rows from interactions where dt >= ?", ["2026-06-01"])"""
        import pyarrow as pa

        from pipelines.asking import Bounds, bounded_question

        def whole(answer: Any) -> pa.Table:
            return pa.Table.from_batches(answer.batches, schema=answer.schema)

        table = bounded_question(self._place, query, parameters, Bounds(timeout, memory_gib), whole)
        return table if arrow else _frame(table)

    @public
    def page(self, query: str, parameters: Parameters = None, *, limit: int = 200, page: int = 1) -> pl.DataFrame:
        """One page of a query's rows, counted from page 1. Rows are read as far as the page goes; pages fit together if the
        query orders its rows. Raises Error as `sql` does. >>> lake.page("from decisions order by interaction_id, stage",
        limit=100, page=2)"""
        import pyarrow as pa

        from pipelines.asking import Bounds, bounded_question
        from resources.catalog import Page

        if limit < 1 or page < 1:
            raise Error(f"limit {limit}, page {page}: give both from 1")

        def read(answer: Any) -> pa.Table:
            rows = Page(answer, limit, page)
            return pa.Table.from_batches(rows.batches, schema=rows.schema)

        return _frame(bounded_question(self._place, query, parameters, Bounds(), read))

    @public
    def table(self, name: str) -> pl.LazyFrame:
        """A table or view of the catalog as a lazy frame, such as `decisions` (in force) or `decisions_history` (all).

        Log tables (interactions, feedback, cleaned_interactions, ...) are scanned: a query reads only the columns and days that
        it needs, of the newest version. Raises Error for a name that `from relations` does not list.

        >>> lake.table("interactions").group_by("model").len().collect()"""
        import polars as pl

        from resources.lake import PARTITIONS, SCHEMAS, Tables

        tables = {"decisions_history": "decisions", "feedback_records": "feedback", "decisions": "", "feedback": ""}
        stored = tables.get(name, name)
        if stored in SCHEMAS:
            columns = dict(cast(pl.DataFrame, pl.from_arrow(SCHEMAS[stored].empty_table())).schema)
            files = Tables(self._place).files(stored)
            if not files:
                return pl.LazyFrame(schema=columns)
            in_path = {column: columns[column] for column in PARTITIONS[stored]}
            in_file = {column: kind for column, kind in columns.items() if column not in in_path}
            return pl.scan_parquet(
                files, schema=in_file, hive_partitioning=True, hive_schema=in_path, missing_columns="insert"
            ).select(list(columns))
        if '"' in name or name not in set(self.sql("select relation from relations where kind <> 'macro'")["relation"]):
            raise Error(f"no table or view {name} in {self._place.place}: `from relations` lists them")
        return self.sql(f'from "{name}"').lazy()

    @public
    def dataset(self, name: str, version: str | None = None, split: Split | None = None) -> pl.LazyFrame:
        """The rows of a dataset as a lazy frame, with a column `split`: the file of the row, such as train.

        name: workload/name, such as math-tutor/sft_dataset, or the name alone where one workload has it. version: its first
        digits, current (the default) or previous. split: only rows of this split. Raises Error for a
        dataset, version or split that the lake does not have.

        >>> lake.dataset("math-tutor/sft_dataset", split="train").head(3).collect()"""
        import polars as pl

        from resources.reporting import CURRENT, PREVIOUS, version_named

        if version in (CURRENT, PREVIOUS):
            name, version = version_named(self._place, name, version)
        home = self._artefact(f"{name}@{version}" if version else name, "datasets")
        files = {file.stem: file for file in sorted(home.rglob("*.parquet"))}
        if split is not None and split not in files:
            raise Error(f"dataset {name} has no split {split}; there are {', '.join(files) or 'none'}")
        chosen = {split: files[split]} if split is not None else files
        if not chosen:
            raise Error(f"dataset {name} holds no Parquet file")
        parts = [pl.scan_parquet(file).with_columns(split=pl.lit(stem)) for stem, file in chosen.items()]
        return pl.concat(parts, how="diagonal_relaxed")

    @public
    def artefacts(self) -> pl.DataFrame:
        """Datasets, models and releases, with name, version, operation, time, and whether each is the current version."""
        return self.sql("from artefacts order by created_at")

    @public
    def directory(self, artefact: str) -> Path:
        """The directory of a dataset, model or release: workload/name (the current version), workload/name@version, the first 4
        or more digits of a version. >>> lake.directory("math-tutor/quantized_model")"""
        return self._artefact(artefact)

    @public
    def lineage(self, artefact: str) -> pl.DataFrame:
        """What an artefact was made from, down to the tables of log lines: one row per edge, with depth, child and parent. >>>
        lake.lineage("math-tutor/speculator")"""
        import polars as pl

        from resources.catalog import lineage_of

        frame = pl.from_arrow(lineage_of(self._place, artefact))
        assert isinstance(frame, pl.DataFrame)
        return frame

    @public
    def why(self, identifier: str) -> pl.DataFrame:
        """The history of a request or log line: one row per step, from the line to the releases trained on it. identifier: id
        of an interaction (8 or more digits), request, trace or session, a log object, or a line URI:ROW. Raises Error if
        nothing has this id."""
        import polars as pl

        from resources.catalog import history_of

        frame = pl.from_arrow(history_of(self._place, identifier).steps)
        assert isinstance(frame, pl.DataFrame)
        return frame

    @public
    def side_by_side(self, before: str, after: str, prompts: int = 50) -> SideBySide:
        """What two releases answered to the same prompts, with the differences marked: in a notebook, as a frame, as a page.

        before, after: versions of two releases of a workload (their first characters are enough). Nothing is generated: greedy
        answers to held-out rows come from the evaluation that compared the two, further ones, sampled, from what their drafters
        learnt. Raises Error where nothing is kept that both answered.

        >>> lake.side_by_side("3f2a91", "77b0c2", prompts=50)"""
        from resources.releases import find_release
        from resources.reporting import answers_side_by_side

        if prompts < 1:
            raise Error(f"prompts {prompts}: give 1 or more")
        one, other = find_release(self._place, before).directory, find_release(self._place, after).directory
        return SideBySide(answers_side_by_side(self._place, one, other, prompts), one.name, other.name)

    @public
    def verify(self, artefact: str) -> list[str]:
        """Checks a dataset, model, drafter or release: one sentence per problem, an empty list if there is none. Files are
        compared with their digests, tensors with their config. artefact: as in `directory`. >>>
        lake.verify("math-tutor/quantized_model") []"""
        from pipelines.releasing import verify_directory

        return verify_directory(self._artefact(artefact))

    @public
    def run(self, run_id: str) -> Run:
        """A run that any process submitted to this lake. Raises Error for an unknown id."""
        from pipelines.running import Run

        return Run.open(self._place, run_id)

    def _artefact(self, artefact: str, below: str = "") -> Path:
        """The directory of an artefact. below: only datasets, models or releases."""
        from resources.catalog import find_artefact

        path = find_artefact(self._place, artefact)
        if below and not path.startswith(f"{below}/"):
            raise Error(f"{artefact} is no dataset but lies in {path}")
        self._place.mirror.fetch(self.path / path)
        return self.path / path


def _frame(table: pa.Table) -> pl.DataFrame:
    """An Arrow table as a Polars frame."""
    import polars as pl

    try:
        frame = pl.from_arrow(table)
    except pl.exceptions.PolarsError as error:
        raise Error(
            f"Polars cannot hold this result ({str(error).splitlines()[0]}): name and cast the columns in the "
            "query, or ask with arrow=True"
        ) from error
    assert isinstance(frame, pl.DataFrame)
    return frame


class SideBySide:
    """Pairs of answers. Texts are those of the log and of models: treat them as data."""

    def __init__(self, pairs: list[Any], before: str, after: str):
        self._pairs = pairs
        self.before, self.after = before, after
        """Versions of the two releases."""

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        return f"<{len(self)} prompts answered by {self.before} and {self.after}>"

    @property
    def frame(self) -> pl.DataFrame:
        """One row per prompt: row_id, turn (-1: the row's last answer), how, prompt, logged, before, after, same."""
        import polars as pl

        columns = ("row_id", "turn", "how", "prompt", "logged", "before", "after", "same")
        return pl.DataFrame([{name: getattr(pair, name) for name in columns} for pair in self._pairs])

    def _repr_html_(self) -> str:
        from resources.reporting import pairs_as_html

        return pairs_as_html(self._pairs, self.before, self.after)

    @public
    def html(self, path: str | Path) -> Path:
        """Writes the page and returns its path. It shows texts of users. >>> found.html("answers.html")"""
        from model_ops.files import write_text

        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        page = (
            f'<!doctype html>\n<html lang="en">\n<head>{head}<title>{self.before} and {self.after}</title></head>\n'
            f"<body>\n{self._repr_html_()}\n</body>\n</html>\n"
        )
        write_text(Path(path).expanduser().absolute(), page)
        return Path(path)
