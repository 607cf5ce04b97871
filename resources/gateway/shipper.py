"""Turns the journal's segments into compressed log objects: a process of its own, so that the front is never slowed by it.

    python -m resources.gateway.shipper JOURNAL STORE RUN      # until its standard input ends

    dt=2026-06-01/hour=10/traffic-<segment>.jsonl.zst          # requests with their answers
    dt=2026-06-01/hour=10/feedback-<segment>.jsonl.zst

A segment is deleted when its objects are in the store. Names and contents follow from the segment alone: a segment that is
shipped twice because something was killed in between gives the same objects. If the store is away, segments wait, and the
shipper tries again after 1, 2, 4, ... 60 seconds. If the front is killed, the shipper ships what it left, tries each segment
once, and ends; the next start ships the rest."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import zstandard

from model_ops.chat_apis import json_text
from model_ops.files import file_lock, write_json
from model_ops.machine import Backoff
from resources.gateway.journal import OPEN, READY, STATUS, Frame, Store, frames, make_ready, open_store, segments
from resources.gateway.record import Unreadable, record_of

LOOKS_EVERY_S, FLUSHES_EVERY_S = 0.25, 1.0
LEVEL = 3
ODD = (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""What the reader of an answer raises whose shape no API has: such an exchange is counted and holds up no other."""
FEEDBACK, TRAFFIC = "feedback", "traffic"


def ship(segment: Path, store: Store) -> tuple[int, Counter[str]]:
    """Writes a segment's objects and deletes it. Returns the records written, and the frames that gave none by reason. Raises
    OSError where the store does not take an object: the segment stays."""
    lines: dict[str, list[str]] = defaultdict(list)
    unreadable, last = Counter[str](), None
    for frame in frames(segment):
        last = frame
        try:
            lines[_place(frame, segment)].append(json_text(record_of(frame)))
        except Unreadable as problem:
            unreadable[problem.reason] += 1
        except ODD:
            unreadable["not_understood"] += 1
    if last is not None:
        for reason, count in sorted(unreadable.items()):
            at = last.meta["at"]
            note = Frame({"kind": "note", "not_kept": {reason: count}, "since": at, "at": at}, b"", b"")
            lines[_place(note, segment)].append(json_text(record_of(note)))
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True)
    for name, records in sorted(lines.items()):
        store.put(name, compressor.compress("".join(f"{line}\n" for line in records).encode("utf-8", "surrogatepass")))
    segment.unlink(missing_ok=True)
    return sum(map(len, lines.values())), unreadable


def _place(frame: Frame, segment: Path) -> str:
    kind = FEEDBACK if frame.meta["kind"] == "feedback" else TRAFFIC
    return f"{datetime.fromtimestamp(frame.meta['at'], UTC):dt=%Y-%m-%d/hour=%H}/{kind}-{segment.stem}.jsonl.zst"


class Shipper:
    """Ships ready segments of a journal, oldest first, and says in STATUS how it stands."""

    def __init__(self, journal: Path, store: Store):
        self.journal, self.store = journal, store
        self.records, self.segments, self.unreadable = 0, 0, Counter[str]()
        self.problem, self.last_at = "", 0.0
        self._backoff = Backoff()

    def ship_all(self, keep_trying: bool = True) -> bool:
        """Ships what is ready. Whether nothing is left. keep_trying: wait after a failure; otherwise every segment is tried at
        once."""
        if keep_trying and not self._backoff.is_over:
            return False
        for segment in segments(self.journal, READY):
            try:
                records, unreadable = ship(segment, self.store)
            except FileNotFoundError:
                if segment.exists():
                    raise
                continue  # shipped by another shipper
            except OSError as error:
                self.problem = _words(error)
                self._backoff.begin()
                self.tell()
                return False
            self.records, self.segments = self.records + records, self.segments + 1
            self.unreadable.update(unreadable)
            self.problem, self.last_at = "", time.time()
            self._backoff.reset()
            self.tell()
        return True

    def tell(self) -> None:
        """Writes STATUS; a disk that is full is no reason to end."""
        with contextlib.suppress(OSError):
            status = {name: getattr(self, name) for name in ("records", "segments", "unreadable", "problem", "last_at")}
            write_json(self.journal / STATUS, {"store": self.store.place, **status})


def _words(error: OSError) -> str:
    if error.strerror and error.filename:  # the file of an object: its name has no user text
        return f"{error.filename}: {error.strerror}"
    return error.strerror or str(error) or type(error).__name__


def flush(journal: Path) -> None:
    """Lets the system write segments to the disk."""
    for segment in [*segments(journal, OPEN), *segments(journal, READY)]:
        with contextlib.suppress(OSError):
            handle = os.open(segment, os.O_RDONLY)
            try:
                os.fdatasync(handle)
            finally:
                os.close(handle)


def run(shipper: Shipper, name: str, ended: Callable[[float], bool]) -> None:
    """Until the front has ended. ended: waits at most so many seconds, and says whether it has."""
    shipper.tell()
    while not ended(LOOKS_EVERY_S):
        shipper.ship_all()
    for segment in segments(shipper.journal, OPEN, name):  # of a front that was killed
        make_ready(segment)
    shipper.ship_all(keep_trying=False)


def main() -> None:
    journal, place, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when the front has
    with contextlib.suppress(OSError):
        os.nice(10)
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.buffer.read()
        over.set()

    def flush_every_second() -> None:  # also while the store keeps the shipper waiting
        while not over.wait(FLUSHES_EVERY_S):
            flush(journal)

    for work in (wait_for_the_end, flush_every_second):
        threading.Thread(target=work, daemon=True).start()
    with file_lock(journal / "shipping"):  # a shipper whose front was killed may still be at work
        run(Shipper(journal, open_store(place)), name, over.wait)


if __name__ == "__main__":
    main()
