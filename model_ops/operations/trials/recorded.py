"""The recorded result of trying every operation on every family (`python -m benchmarks.families`), and the tables made of it.

read_trial_record().families["gemma2"]["int8"]          # None: works; else why not"""

import importlib.metadata
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from model_ops.families import FAMILIES

FILE = Path(__file__).with_name("recorded.json")
PACKAGES = ("torch", "transformers", "compressed-tensors")
"""Packages whose version may change what works."""


class TrialRecord(BaseModel):
    """The recorded trials."""

    model_config = ConfigDict(extra="forbid")

    versions: dict[str, str]
    """Version of each package that was tried."""
    families: dict[str, dict[str, str | None]]
    """model_type -> operation -> None, or why it does not work."""

    @property
    def whole(self) -> list[str]:
        """Families in which every operation works."""
        return [name for name, results in self.families.items() if not any(results.values())]


def read_trial_record() -> TrialRecord:
    """The record in the package."""
    return TrialRecord.model_validate_json(FILE.read_text())


def record(families: dict[str, dict[str, str | None]]) -> TrialRecord:
    """Writes the record of a run with the installed versions."""
    trials = TrialRecord(versions=installed_versions(), families=families)
    FILE.write_text(json.dumps(trials.model_dump(), indent=1) + "\n")
    return trials


def installed_versions() -> dict[str, str]:
    """Versions of PACKAGES, without local parts (torch's +cpu)."""
    return {name: importlib.metadata.version(name).split("+")[0] for name in PACKAGES}


def rows_of(families: dict[str, dict[str, str | None]]) -> list[dict[str, str]]:
    """One row for each family: what the table knows of it, and each operation, "yes" or "no"."""
    rows = []
    for name, results in families.items():
        family = FAMILIES[name]
        rows.append(
            {
                "family": family.title,
                "model_type": name,
                "attention": family.attention,
                "norms": family.norms,
                "router": family.router or "none",
                "rows": family.rows,
                "decoding": _decoding(name),
                **{operation: "yes" if why is None else "no" for operation, why in results.items()},
            }
        )
    return rows


def reasons(families: dict[str, dict[str, str | None]]) -> list[str]:
    """A sentence for each operation that does not work or leaves something out."""
    return [
        *(
            f"{FAMILIES[name].title}, {operation}: {why}"
            for name, results in families.items()
            for operation, why in results.items()
            if why is not None
        ),
        *(f"{FAMILIES[name].title}: {FAMILIES[name].note}" for name in families if FAMILIES[name].note),
    ]


def as_markdown(families: dict[str, dict[str, str | None]]) -> str:
    """What docs/models.md holds: a table of what each family has, and what works where."""
    rows = rows_of(families)
    known = ("family", "model_type", "attention", "norms", "router", "rows", "decoding")
    operations = [name for name in rows[0] if name not in known]
    partly = [row for row in rows if any(row[name] == "no" for name in operations)]
    others = "every other family" if partly else "every family"
    works = [_table(partly, ("family", *operations))] if partly else []
    sentence = f"Works in {others}: {', '.join(operations)}."
    return "\n\n".join([_table(rows, known), *works, sentence, *(f"- {why}" for why in reasons(families))]) + "\n"


def _decoding(name: str) -> str:
    family = FAMILIES[name]
    return "fused" if family.fast else "own blocks, ragged cache" if family.rows == "packed" else "own cache, row by row"


def _table(rows: list[dict[str, str]], columns: tuple[str, ...]) -> str:
    lines = [columns, ["---"] * len(columns), *([row[name] for name in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
