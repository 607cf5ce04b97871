"""Formats numbers for sentences: counted(2400, "row") is `2,400 rows`, duration(840) `14 min`, size(1_200_000_000) `1.2 GB`."""

IRREGULAR = {
    "copy": "copies", "entry": "entries", "process": "processes", "reply": "replies", "retry": "retries",
    "directory": "directories", "batch": "batches", "loss": "losses", "prefix": "prefixes", "match": "matches",
}  # fmt: skip
SECONDS_AS_MINUTES = 90
"""From this many seconds on a duration is given in minutes, and from this many minutes on in hours."""


def plural(count: float, word: str) -> str:
    """The word in the form that follows a count: `row` for 1, else `rows`. Of several words the last one changes."""
    if count == 1:
        return word
    before, space, last = word.rpartition(" ")
    return before + space + IRREGULAR.get(last, f"{last}s")


def singular(words: str) -> str:
    """The singular of a unit (`steps`, `log lines`)."""
    before, space, last = words.rpartition(" ")
    one = next((single for single, many in IRREGULAR.items() if many == last), None)
    return before + space + (one or (last[:-1] if last.endswith("s") and not last.endswith("ss") else last))


def counted(count: int, word: str) -> str:
    """A count with its word: `1 row`, `0 rows`, `2,400 log objects`."""
    return f"{count:,} {plural(count, word)}"


def duration(seconds: float) -> str:
    """A duration rounded for people: `8 s`, `14 min`, `2 h 10 min`, `3 days 4 h`."""
    if seconds < SECONDS_AS_MINUTES:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} days {hours} h" if hours and days < 100 else f"{days:,} days"


def size(count: float) -> str:
    """Bytes in decimal units: `900 bytes`, `12 kB`, `1.2 GB`."""
    if count < 1000:
        return counted(int(count), "byte")
    units = ["kB", "MB", "GB", "TB"]
    count, unit = count / 1000, units.pop(0)
    while count >= 999.5 and units:
        count, unit = count / 1000, units.pop(0)
    return f"{count:.1f} {unit}" if count < 9.95 else f"{count:,.0f} {unit}"
