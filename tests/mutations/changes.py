"""Changes of formulas, rules and gates that a fast test must notice, in changes.diff: name, file with the tests that are run, old text
(-) and new text (+).

Each old text occurs once in its file; test_changes.py says so where it does not. A change of code that moves one takes the entry
along."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Change:
    """tests: files below tests/, of which only fast tests are run."""

    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    @classmethod
    def of(cls, lines: list[str]) -> "Change":
        """From the lines of an entry below its name."""
        file, _, tests = lines[0].partition(": ")
        before, after = ("\n".join(line[2:] for line in lines[1:] if line[0] == sign) for sign in "-+")
        return cls(file, before, after, tuple(tests.split()))


ENTRIES = [
    entry.split("\n") for entry in Path(__file__).with_name("changes.diff").read_text(encoding="utf-8").strip().split("\n\n")
]
CHANGES = {name: Change.of(lines) for name, *lines in ENTRIES if lines}
if len(CHANGES) < sum(len(entry) > 1 for entry in ENTRIES):
    raise ValueError("two entries of changes.diff have the same name")
