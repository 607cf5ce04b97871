"""Records in erased.json, beside its manifest, that rows of a finished artefact were erased. The manifest stays, so lineage
still names the version; `read_manifest` gives the files and digest after the erasure: what was made from the rows before it is
stale. Weights are never rewritten; of a release only its pages, which are not part of its digest in the endpoint's log."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from model_ops.files import write_text
from model_ops.jobs import CheckFailed
from resources.stages import STAGES

ERASED = "erased.json"
TAINTED = "tainted.json"
ELSEWHERE = "elsewhere.json"
"""Beside a manifest without its files, which another lake has (pipelines/rebuilding/copies.py)."""
SIGNATURE, SIGNED_PROVENANCE = "model.sig", "provenance.dsse.json"
"""Signatures over a release (resources/signing/)."""
BESIDE = frozenset({ERASED, TAINTED, ELSEWHERE, SIGNATURE, SIGNED_PROVENANCE})
"""Files beside a manifest that are not part of the artefact."""
APPROVAL_PAGE = "approval.html"
PAGES = frozenset({"report.md", "report.html", APPROVAL_PAGE})
"""Pages of a release that show rows, and that an erasure may therefore rewrite."""
SAMPLED = frozenset(each.own_answers for each in STAGES if each.own_answers)
"""Of a model: answers that it gave while it was trained, with ids and grades, of which an erasure may take rows."""
WITH_TEXT = frozenset(each.own_answers for each in STAGES if each.answers_show_text)
"""Of these, what shows text. No signature, package or push takes it."""

SPLITS = frozenset({"train", "validation", "test"})


class File(BaseModel):
    """A file of an artefact."""

    model_config = ConfigDict(extra="forbid")

    path: str
    bytes: int
    sha256: str


class Removal(BaseModel):
    """Rows that one erasure took from one file."""

    model_config = ConfigDict(extra="forbid")

    erasure: str
    path: str
    rows: int
    learnt: bool
    """Whether models that take this artefact learn rows of the file."""
    digest_before: str
    """Digest of the artefact before this removal; models made until then name it as their input."""
    at: datetime = Field(default_factory=lambda: datetime.now(UTC))


class ErasureRecord(BaseModel):
    """erased.json: what was taken, and the files as they are now, by path."""

    model_config = ConfigDict(extra="forbid")

    removals: list[Removal] = Field(default_factory=list)
    files: dict[str, File] = Field(default_factory=dict)
    counted_as: dict[str, File] = Field(default_factory=dict)
    """Files that lost only texts whose counts are kept, as they were before: so they enter the artefact's digest."""

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.removals)

    def learnt_from(self, digest: str) -> list[Removal]:
        """Removals, after an input had this digest, of rows that models learnt; all, where the artefact never had it."""
        first = next((place for place, each in enumerate(self.removals) if each.digest_before == digest), 0)
        return [each for each in self.removals[first:] if each.learnt and each.rows]

    @property
    def at(self) -> datetime:
        return max(each.at for each in self.removals)

    @property
    def sentence(self) -> str:
        return f"{self.rows:,} row{'' if self.rows == 1 else 's'} erased, last on {self.at:%Y-%m-%d}"


class ErasedRecordError(CheckFailed, ValueError):
    """A record of an erasure that cannot be read."""


def erased_in(directory: Path) -> ErasureRecord | None:
    """What was erased from an artefact. Raises ErasedRecordError for an erased.json that cannot be read."""
    try:
        return ErasureRecord.model_validate_json((directory / ERASED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ErasedRecordError(f"{directory / ERASED} is no record of erasures: restore it from a copy") from error


def note_erased(
    directory: Path, file: File, erasure: str, rows: int, learnt: bool, digest: str, counted_as: File | None = None
) -> None:
    """Records an erasure and the file as it will be, before the new file is in place; a second call replaces the first one.
    digest: of the artefact as it is. counted_as: the file that still counts in the artefact's digest; None for the new one."""
    noted = erased_in(directory) or ErasureRecord()
    known = next((each for each in noted.removals if (each.erasure, each.path) == (erasure, file.path)), None)
    if known is None:
        known = Removal(erasure=erasure, path=file.path, rows=rows, learnt=learnt, digest_before=digest)
        noted.removals.append(known)
    known.rows = max(rows, known.rows)
    noted.files[file.path] = file
    if counted_as is None:
        noted.counted_as.pop(file.path, None)
    else:
        noted.counted_as[file.path] = counted_as
    write_text(directory / ERASED, noted.model_dump_json(indent=2) + "\n")


def after_erasure(directory: Path, kind: str, files: Sequence[File]) -> list[File]:
    """The files of a manifest, with those that an erasure rewrote as they are now: of a dataset any, of a release its pages,
    of a model SAMPLED. A record of anything else counts for nothing, so that it cannot hide changed weights or scripts."""
    noted, rewritten = erased_in(directory), SAMPLED if kind == "model" else PAGES
    if noted is None:
        return list(files)
    return [noted.files.get(file.path, file) if kind == "dataset" or file.path in rewritten else file for file in files]


def is_learnt(path: str, files: Iterable[str]) -> bool:
    """Whether models learn a dataset's file: the training split (train, unpaired_train), or, where nothing is split, all."""
    stems = {Path(file).stem for file in files if file.endswith(".parquet")}
    return Path(path).stem.rpartition("_")[2] == "train" or not stems & SPLITS
