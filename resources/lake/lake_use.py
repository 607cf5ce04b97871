"""Who works on a lake: many runs at a time, or one erasure alone. A kernel lock on `<lake>/.in_use` ends with its process; a
lake in a bucket has a lease there too. Datasets, releases and answers that were finished here but not in the bucket when
another machine erased rows are removed, and the next run makes them again. Models stay: they count as tainted."""

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc
import pyarrow.parquet as pq

from model_ops.files import lock, try_lock
from resources.lake.lake import LakeError, LakeLayout
from resources.lake.tables import Tables
from stores.mirror.bucket import Conflict
from stores.mirror.leases import LeaseHeld
from stores.mirror.mirror import Mirror

LOCK = ".in_use"


class LakeInUse(LakeError):
    """A run holds the lake."""


@contextmanager
def at_work(lake: LakeLayout) -> Iterator[None]:
    """Shares the lake with other runs."""

    def waiting(holder: str = "") -> None:
        by = f" by {holder}" if holder else ""
        logging.getLogger(__name__).warning("waiting: rows are being erased or removed from %s%s", lake.place, by)

    with ExitStack() as stack:
        file = stack.enter_context((lake.root / LOCK).open("a"))
        if not try_lock(file, shared=True):
            waiting()
            lock(file, shared=True)
        stack.enter_context(lake.mirror.at_work(waiting))
        with _published(lake):
            yield


@contextmanager
def alone(lake: LakeLayout, what: str) -> Iterator[None]:
    """Holds the lake alone. what: the command, for the sentence of LakeInUse."""
    with ExitStack() as stack:
        file = stack.enter_context((lake.root / LOCK).open("a"))
        try:
            if not try_lock(file):
                raise LeaseHeld
            stack.enter_context(lake.mirror.alone())
        except LeaseHeld as error:
            by = f" ({error})" if str(error) else ""
            raise LakeInUse(
                f"a run is at work on {lake.place}{by}: wait until `millrace status` shows none, or stop it, and "
                f"then {what} again"
            ) from error
        with _published(lake, is_alone=True):
            yield


@contextmanager
def _published(lake: LakeLayout, is_alone: bool = False) -> Iterator[None]:
    """Publishes what the block wrote, also if it fails. is_alone: the block works on every version of the lake."""
    lake.mirror.pull(over_drafts=is_alone)
    drop_before_erasure(lake)
    if is_alone:
        lake.mirror.require_whole()
    try:
        yield
    finally:
        try:
            lake.mirror.push()
        except Conflict as error:
            raise LakeError(
                f"another machine changed {error} of {lake.place} meanwhile: what this one wrote there was not "
                "kept; run it again"
            ) from error


CLOCKS_DIFFER = timedelta(minutes=5)
"""What clocks of two machines may differ by."""


def drop_before_erasure(lake: LakeLayout) -> None:
    """Removes datasets, releases and answers of this machine that were not published before the last erasure."""
    for of_earlier_versions in (".remembered/embeddings", "sweeps"):  # vectors of prompts, weights of trials
        shutil.rmtree(lake.root / of_earlier_versions, ignore_errors=True)
    if not isinstance(lake.mirror, Mirror):
        return
    own = {path: lines for path in sorted((lake.root / "answers").glob("*.jsonl")) if (lines := lake.mirror.own_answers(path))}
    versions = [version for version in lake.mirror.unpublished() if not version.is_relative_to(lake.artefacts("model"))]
    if not (own or versions) or (erased_at := _last_erasure(lake)) is None:
        return
    for version in versions:
        if _time(json.loads((version / "manifest.json").read_bytes())["created_at"]) < erased_at:
            (version / "manifest.json").unlink()  # from now on it is a leftover of a stopped run
            shutil.rmtree(version)
            _say(
                f"{version.relative_to(lake.root)} was finished here and not published before rows were erased on another "
                "machine: it is removed, and the next run makes it again"
            )
    for path, lines in own.items():
        old = [line for line in lines if _is_before(line, erased_at)]
        if old:
            lake.mirror.drop_answers(path, old)
            _say(
                f"{len(old)} answers of {path.relative_to(lake.root)} were not published before rows were erased on another "
                "machine: they are removed, and the next run asks again"
            )


def _last_erasure(lake: LakeLayout) -> datetime | None:
    times = [pc.max(pq.ParquetFile(file).read(["ts"])["ts"]).as_py() for file in Tables(lake).files("erasures")]
    last = max((_time(time) for time in times if time is not None), default=None)
    return last + CLOCKS_DIFFER if last is not None else None


def _is_before(line: bytes, erased_at: datetime) -> bool:
    try:
        answer = json.loads(line)
        return answer["answer"]["finish_reason"] != "judge" and _time(answer["asked_at"]) < erased_at
    except (ValueError, KeyError, TypeError):
        return True


def _time(given: str | datetime) -> datetime:
    time = datetime.fromisoformat(given) if isinstance(given, str) else given
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _say(message: str) -> None:
    logging.getLogger(__name__).warning(message)
