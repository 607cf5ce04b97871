"""Writes a dataset's card: README.md in the form of Hugging Face, so that `datasets.load_dataset(DIRECTORY)` reads the splits.
It holds no row and no date: the same rows give the same bytes. Its text is in cards/."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from model_ops.files import write_text
from resources.lake import rows, sql_literal, sql_text, workbench

SPLITS = ("train", "validation", "test")
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def write_card(directory: Path, metrics: Mapping[str, Any], settings: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Writes README.md into a directory with split files. about: workload, name, pii, licences; each may be left out."""
    with workbench() as connection:
        listed = ", ".join(sql_literal(str(directory / f"{split}.parquet")) for split in SPLITS)
        connection.execute(sql_text("composing/card/rows").format(files=listed))
        lengths, mixture, languages, shapes = (
            rows(connection, f"composing/card/{name}").to_pylist() for name in ("lengths", "mixture", "languages", "shapes")
        )
    text = card_text(
        "dataset",
        title="/".join(part for part in (about.get("workload"), about.get("name", "sft_dataset")) if part),
        splits=SPLITS,
        size=_size(sum(metrics["rows"].values())),
        languages=[each["language"] for each in languages if re.fullmatch(r"[a-z]{2,3}", each["language"])],
        metrics=metrics,
        settings=settings,
        settings_json=json.dumps(settings, indent=1, sort_keys=True),
        lengths=[[each[name] for name in ("split", "rows", "characters", "median", "p95", "longest")] for each in lengths],
        tokens=[[name, *(splits[split] for split in SPLITS)] for name, splits in (metrics.get("tokens") or {}).items()],
        mixture=[
            (each["source"], writer, each["rows"], f"{each['share']:z.1%}", f"{each['weight']:.3g}")
            for each in mixture
            for writer in ["a model" if each["synthetic"] else "traffic or people"]
        ],
        by_language=[(each["language"] or "not detected", each["rows"]) for each in languages[:20]],
        shapes=[
            (f"`{each['shape'] or 'none'}`", each["rows"], *(f"{each[split]:z.1%}" for split in SPLITS)) for each in shapes
        ],
        licences=about.get("licences", {}),
        pii=about.get("pii", "redact"),
    )
    write_text(directory / "README.md", text)


def write_plain_card(directory: Path, what: str, about: Mapping[str, Any], more: Iterable[str] = ()) -> dict[str, Any]:
    """Writes README.md for rows with split, source and reason; returns counts. more: lines after the counts of rows."""
    files = [directory / f"{split}.parquet" for split in SPLITS if (directory / f"{split}.parquet").exists()]
    with workbench() as connection:
        counts = rows(connection, "composing/card/by_reason", files=[str(file) for file in files]).to_pylist()
    text = card_text(
        "plain",
        title="/".join(part for part in (about.get("workload"), about.get("name")) if part) or directory.name,
        splits=[file.stem for file in files],
        size=_size(sum(each["rows"] for each in counts)),
        what=what,
        counts=[each.values() for each in counts],
        more="".join(f"{line}\n" for line in more),
        pii=about.get("pii", "redact"),
    )
    write_text(directory / "README.md", text)
    by_source: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for each in counts:
        by_source[each["source"]][each["reason"]] += each["rows"]
    return {"by_source_and_reason": {source: dict(reasons) for source, reasons in by_source.items()}}


def card_text(template: str, **facts: Any) -> str:
    """The text of a template in cards/."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "cards"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = _cell
    return environment.get_template(f"{template}.md.j2").render(facts)


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value).replace("|", "\\|")


def _size(total: int) -> str:
    return next((name for most, name in SIZES if total < most), "1M<n<10M" if total < 10_000_000 else "10M<n<100M")
