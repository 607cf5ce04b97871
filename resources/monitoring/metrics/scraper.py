"""Reads the metrics of one endpoint's servers into windows that end at whole minutes (or other lengths) since 1970.

A server that does not answer keeps counting: the next window that can be read begins where the last one ended. Only a server
that ends takes its counts since the last reading with it. Methods may be called from several threads. Each window is in the
table once: rows that may have been committed before (a lost reply, a killed process) are looked up first."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from model_ops.files import write_json
from model_ops.jobs import counted
from resources.lake import MANY_FILES, SCHEMAS, LakeLayout, Tables, attach_slice, rows, workbench
from resources.monitoring.metrics.servers import CounterChanges, Reading, added, row_of, since
from resources.monitoring.metrics.target import Scrape, ScrapeError, Target
from stores.in_use import InUse, taken
from stores.lake_error import LakeError

EVERY_S = 60.0
CLOCKS_APART_S = 60.0
"""A larger difference between the clocks of a server and of this machine is reported."""
LONG_S = 3_600.0
"""Longer windows are reported: they belong to no hour."""

Say = Callable[[str], None]


@dataclass
class _Source:
    """A server that is read."""

    target: Target
    release: str | None
    reading: Reading
    at: datetime
    clock: float
    """`at`, `clock`: when it was read last (wall clock, and time.monotonic)."""
    asks: bool = False
    """Whether its release is asked for after it restarted."""
    carried: CounterChanges = field(default_factory=lambda: CounterChanges({}))
    """Counts of windows that could not be written because the wall clock went back, with their seconds."""
    carried_s: float = 0.0


class Scraper:
    """endpoint: the name of what is served, in the table. every_s: length of a window. say: told what is not as it should be,
    each once. now, clock: wall clock and monotonic seconds."""

    def __init__(
        self,
        lake: LakeLayout,
        workload: str,
        endpoint: str,
        every_s: float = EVERY_S,
        say: Say = print,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ):
        self._store = WindowStore(lake, workload, endpoint)
        self._every_s, self._say, self._now, self._clock = every_s, say, now, clock
        self._sources: dict[str, _Source] = {}
        self._coming: dict[str, dict[str, Any]] = {}
        """Servers that could not be read yet: what `begins` was given, by address."""
        self._reported: dict[str, str] = {}
        self._lock = threading.RLock()

    def __enter__(self) -> Scraper:
        with ExitStack() as stack:
            stack.enter_context(self._store)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Reads the last window of every server that still answers."""
        with self._lock:
            for url in list(self._sources):
                self.ends(url)
            self._open.close()

    @property
    def next_s(self) -> float:
        """Seconds until the window that is open ends."""
        seconds = self._now().timestamp()
        return self._every_s - seconds % self._every_s

    @property
    def waiting(self) -> int:
        """Windows that are not in the table yet."""
        return self._store.waiting

    def begins(self, url: str, release: str | None, target: Target | None = None, asks: bool = False) -> None:
        """Reads a server from now on. If it cannot be read now, that is reported once; the first `tick` that can begins.
        asks: whose release an answer of its own names, if `release` is None and whenever it was started again; it is read from
        where a process before this one stopped, if its counters go on."""
        with self._lock:
            target = target or Target(url)
            try:
                scraped = target.scrape()
                if asks and release is None:
                    release = scraped.release or target.asked_release()
                    if release is None:
                        raise ScrapeError(
                            f"no answer of {url} names its release (a server of a release of millrace has a "
                            "fingerprint): give --release"
                        )
            except ScrapeError as error:
                self._tell(url, f"{error}; it is tried again")
                self._coming[url] = {"release": release, "target": target, "asks": asks}
                return
            self._reported.pop(url, None)
            self._coming.pop(url, None)
            self._source(url, release, target, scraped, asks)
            self._check_clock(url, scraped)
            self._keep([])

    def tick(self) -> None:
        """Reads every server, and writes the windows that ended."""
        with self._lock:
            self._keep([row for url in list(self._sources) if (row := self._row(url, aligned=True)) is not None])
            for url, given in list(self._coming.items()):
                self.begins(url, **given)

    def ends(self, url: str, gone: bool = False) -> None:
        """Reads a server's last window and forgets it. gone: it ended by itself and cannot be read any more."""
        with self._lock:
            self._coming.pop(url, None)
            if url not in self._sources:
                return
            row = None if gone else self._row(url, aligned=False)
            self._keep([row] if row is not None else [])
            self._sources.pop(url).target.close()

    def releases(self) -> dict[str, str | None]:
        """The release of each server that is read, by its address."""
        return {url: source.release for url, source in self._sources.items()}

    def _source(self, url: str, release: str | None, target: Target, scraped: Scrape, asks: bool) -> None:
        now, clock = self._now(), self._clock()
        source = _Source(target, release, scraped.reading, now, clock, asks)
        before = self._store.last.get(url) if asks else None
        if before is not None and before["release"] == release and datetime.fromisoformat(before["at"]) < now:
            at, said = datetime.fromisoformat(before["at"]), before["reading"]
            source.reading, source.at = Reading(said["server"], said["counters"], {}, said["began"]), at
            source.clock = clock - (now - at).total_seconds()
        self._sources[url] = source

    def _row(self, url: str, aligned: bool) -> dict[str, Any] | None:
        """The window of a server since it was read last; None, told once, where it cannot be read or written now."""
        source = self._sources[url]
        try:
            scraped = source.target.scrape()
        except ScrapeError as error:
            lost = f"what it counted since {source.at:%H:%M:%S} UTC is not known"
            comes = "what it counts meanwhile comes with the next window" if aligned or source.asks else lost
            self._tell(url, f"{error}: {comes}")
            return None
        self._reported.pop(url, None)
        self._check_clock(url, scraped)
        now, clock = self._now(), self._clock()
        if scraped.release is not None and source.release is not None and scraped.release != source.release:
            self._say(
                f"{url} now answers with release {scraped.release}; what release {source.release} counted since "
                f"{source.at:%H:%M:%S} UTC is not known"
            )
            source.release, source.reading, source.at, source.clock = scraped.release, scraped.reading, now, clock
            return None
        seen = added(source.carried, since(source.reading, scraped.reading))
        if seen.restarts and source.asks:
            try:
                source.release = source.target.asked_release() or source.release
            except ScrapeError as error:
                why = f"{url} was started again and its release is not known ({error})"
                self._tell(f"release {url}", f"{why}: its windows count for release {source.release}")
        seconds = source.carried_s + clock - source.clock
        source.reading, source.clock = scraped.reading, clock
        end = self._boundary(now) if aligned else max(now, source.at + timedelta(seconds=1))
        if end <= source.at:
            source.carried, source.carried_s = seen, seconds
            if (source.at - now).total_seconds() > self._every_s:
                self._say(
                    f"the clock of this machine went back from {source.at:%Y-%m-%d %H:%M:%S} to {now:%H:%M:%S} UTC: the "
                    "next window begins at the new time, and its counts are those since the last one"
                )
                source.at = now
            return None
        if seconds > LONG_S:
            self._say(
                f"one window of {url} has {seconds / 3_600:.1f} hours, since {source.at:%Y-%m-%d %H:%M} UTC: it "
                "was not read meanwhile"
            )
        row = {"release": source.release, "window_start": source.at, "window_end": end}
        row |= row_of(seen, scraped.reading, seconds)
        source.at, source.carried, source.carried_s = end, CounterChanges({}), 0.0
        return row

    def _boundary(self, now: datetime) -> datetime:
        """The end of the last whole window, or the next one if it ends within a tenth of a window."""
        seconds = now.timestamp() + self._every_s / 10
        return datetime.fromtimestamp(seconds - seconds % self._every_s, UTC)

    def _keep(self, rows: list[dict[str, Any]]) -> None:
        last = {
            url: {"release": source.release, "at": source.at.isoformat(), "reading": _as_json(source.reading)}
            for url, source in self._sources.items()
            if source.asks
        }
        problem = self._store.keep(rows, {**self._store.last, **last})
        if problem:
            waits = f"{self._store.waiting} windows wait and are tried again"
            self._tell("table", f"serving_metrics cannot be written ({problem}); {waits}")
        elif self._reported.pop("table", None):
            dropped = f"; the {self._store.dropped} oldest windows were dropped"
            self._say(f"serving_metrics is written again{dropped if self._store.dropped else ', and no window is missing'}")

    def _check_clock(self, url: str, scraped: Scrape) -> None:
        if scraped.clock_ahead_s is not None and abs(scraped.clock_ahead_s) > CLOCKS_APART_S:
            ahead = "ahead of" if scraped.clock_ahead_s > 0 else "behind"
            differs = f"the clock of {url} is {abs(scraped.clock_ahead_s):.0f} s {ahead} this machine's"
            self._tell(f"clock {url}", f"{differs}: windows are those of this machine's clock", always_same=True)

    def _tell(self, about: str, sentence: str, always_same: bool = False) -> None:
        """Tells a sentence once until something else is true. always_same: its numbers do not matter."""
        before = self._reported.get(about)
        if before is None or (before != sentence and not always_same and about != "table"):
            self._say(sentence)
        self._reported[about] = sentence


def _as_json(reading: Reading) -> dict[str, Any]:
    return {"server": reading.server, "counters": dict(reading.counters), "began": reading.began}


TABLE = "serving_metrics"
MOST_WAITING = 20_000
"""Windows that wait at most: two weeks of minutes. Beyond, the oldest are dropped, and that is said."""
NOT_NOW = (OSError, LakeError, DeltaError)
"""Failures of a store that pass."""
KEY = ("endpoint", "release", "window_start")


class WindowStore:
    """Raises ScrapeError on entering if another process keeps windows of this endpoint, OSError if the lake cannot be
    written."""

    def __init__(self, lake: LakeLayout, workload: str, endpoint: str):
        self._tables, self._workload, self._endpoint = Tables(lake), workload, endpoint
        self._folder = lake.root / ".serving" / workload / "metrics" / hashlib.sha256(endpoint.encode()).hexdigest()[:12]
        self._waiting: list[dict[str, Any]] = []
        self._unsure, self._commits, self.dropped = False, 0, 0
        self.last: dict[str, Any] = {}

    def __enter__(self) -> WindowStore:
        with ExitStack() as stack:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(taken(self._folder))
            except InUse as error:
                raise ScrapeError(
                    f"another process reads the metrics of {self._endpoint} into this lake: stop it first"
                ) from error
            self._file.touch()
            self._recall()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def _file(self) -> Path:
        return self._folder / "kept.json"

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def keep(self, new: list[dict[str, Any]], last: dict[str, Any]) -> str:
        """Keeps rows and what was read last. Returns why rows wait for the next call; "" if none does."""
        self._waiting += [
            dict.fromkeys(SCHEMAS[TABLE].names) | row | {"workload": self._workload, "endpoint": self._endpoint} for row in new
        ]
        if (more := len(self._waiting) - MOST_WAITING) > 0:
            self._waiting, self.dropped = self._waiting[more:], self.dropped + more
        self.last = last
        problem = ""
        try:
            self._write()
            if self._waiting:
                self._commit()
                self._write()
        except NOT_NOW as error:
            self._unsure, problem = True, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return problem

    def _commit(self) -> None:
        part = self._waiting
        if self._unsure:
            there = self._there(min(row["window_start"] for row in part))
            part = [row for row in part if tuple(row[name] for name in KEY) not in there]
        if part:
            self._tables.append(TABLE, pa.Table.from_pylist(part, schema=SCHEMAS[TABLE]))
        self._waiting, self._unsure, self._commits = [], False, self._commits + 1
        if self._commits % MANY_FILES == 0:
            with suppress(*NOT_NOW):  # the rows are there; the next time merges more
                self._tables.compact(TABLE, self._workload)

    def _there(self, since: datetime) -> set[tuple[Any, ...]]:
        """Keys of windows that the table has."""
        with workbench() as connection:
            attach_slice(connection, self._tables, TABLE, self._workload)
            known = rows(connection, "scraping/windows_there", endpoint=self._endpoint, since=since).to_pylist()
        return {(row["endpoint"], row["release"], row["window_start"].astimezone(UTC)) for row in known}

    def _write(self) -> None:
        waiting = [row | {name: row[name].isoformat() for name in ("window_start", "window_end")} for row in self._waiting]
        write_json(self._file, {"last": self.last, "waiting": waiting})

    def _recall(self) -> None:
        """Takes over what a process before this one left; a file that cannot be read is left behind."""
        try:
            said = json.loads(self._file.read_text(encoding="utf-8"))
            waiting = [
                row
                | {name: datetime.fromisoformat(row[name]) for name in ("window_start", "window_end")}
                | {name: [tuple(each) for each in row[name] or []] for name in ("latency_ms", "finished")}
                for row in said["waiting"]
            ]
            self.last, self._waiting = dict(said["last"]), waiting
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        self._unsure = True


def scrape(
    lake: LakeLayout, workload: str, url: str, release: str | None, every_s: float, say: Say, api_key_env: str | None = None
) -> None:
    """Returns when it is interrupted. release: that the server serves; None: what its answers name. Raises ScrapeError for what
    is no address, a variable without a key, a workload without a release, and if another process reads this server into this
    lake."""
    known = sorted({path.parent.parent.name for path in lake.artefacts("release").glob("*/*/manifest.json")})
    if workload not in known:
        raise ScrapeError(f"{lake.place} has no release of {workload!r}; there are: {', '.join(known) or 'none yet'}")
    target = Target(url, api_key_env)
    with Scraper(lake, workload, target.url, every_s, say) as scraper:
        try:
            scraper.begins(target.url, release, target, asks=True)
            reported = ""
            while True:
                for served in scraper.releases().values():
                    if served != reported:
                        reported = served or ""
                        say(f"reads {target.url}/metrics every {every_s:g} s: windows of release {reported} of {workload}")
                time.sleep(scraper.next_s)
                scraper.tick()
        except KeyboardInterrupt:
            say("ends with the window that is open")
    if scraper.waiting:
        say(f"{counted(scraper.waiting, 'window')} could not be written yet: the next start of this command writes them")
