"""Writes a dataset's card: README.md in the form of Hugging Face, so that `datasets.load_dataset(DIRECTORY)` reads the splits.

    write_card(directory, metrics, settings, {"workload": "math-tutor", "pii": "redact", "licences": {"handmade": "mit"}})

The metadata names each split's file. The text has lengths, mixture, languages, prompt shapes, decisions, licences and what was
done about personal data. It holds no row and no date: the same rows give the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from model_ops.files import write_text
from resources.lake import rows, sql_literal, sql_text, workbench

SPLITS = ("train", "validation", "test")
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10_000_000, "1M<n<10M"))
PII = {
    "redact": "Personal data in logged traffic (keys and passwords, e-mail addresses, IBANs, card, social security and phone "
    "numbers, IP addresses) was replaced by typed placeholders such as `<EMAIL_1>` before curation. What no rule "
    "recognises may remain. Seeds are used as given: nothing was replaced in them.",
    "keep": "Nothing was replaced: rows hold personal data as it was logged (`curation.pii: keep`).",
}


def write_card(directory: Path, metrics: Mapping[str, Any], settings: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Writes README.md into a directory with split files. about: workload, name, pii, licences; each may be left out."""
    files = [directory / f"{split}.parquet" for split in SPLITS]
    with workbench() as connection:
        listed = ", ".join(sql_literal(str(file)) for file in files)
        connection.execute(sql_text("composing/card/rows").format(files=listed))
        found = {
            name: rows(connection, query).to_pylist()
            for name, query in (
                ("lengths", "composing/card/lengths"),
                ("mixture", "composing/card/mixture"),
                ("languages", "composing/card/languages"),
                ("shapes", "composing/card/shapes"),
            )
        }
    title = "/".join(part for part in (about.get("workload"), about.get("name", "sft_dataset")) if part)
    total = sum(metrics["rows"].values())
    codes = [each["language"] for each in found["languages"] if re.fullmatch(r"[a-z]{2,3}", each["language"])]
    lines = [
        *metadata(title, [file.stem for file in files], total, codes, synthetic=metrics["synthetic"] > 0),
        f"# {title}",
        "",
        "Conversations for supervised fine-tuning, made by millrace from logged traffic and seeds. Split by user: all sessions "
        "of a user are in one split."
        if settings["split_by"] == "user"
        else "Conversations for supervised fine-tuning, made by millrace from logged traffic and seeds. Split by session.",
        "",
        "```python",
        "datasets.load_dataset(DIRECTORY)                   # Hugging Face",
        'polars.scan_parquet("DIRECTORY/*.parquet")         # column `split`',
        "```",
        "",
        "## Lengths",
        "",
        "Characters of the messages as JSON, or of plain text.",
        "",
        *markdown_table(
            ("split", "rows", "characters", "median", "95 %", "longest"),
            [[each[name] for name in ("split", "rows", "characters", "median", "p95", "longest")] for each in found["lengths"]],
        ),
        *_tokens(metrics.get("tokens") or {}),
        "## Mixture",
        "",
        "Training rows. Weight: rows in the split for each row that there was.",
        "",
        *markdown_table(
            ("source", "written by", "rows", "share", "weight"),
            [
                [
                    each["source"],
                    "a model" if each["synthetic"] else "traffic or people",
                    each["rows"],
                    f"{each['share']:z.1%}",
                    f"{each['weight']:.3g}",
                ]
                for each in found["mixture"]
            ],
        ),
        *([f"{note[:1].upper()}{note[1:]}." for note in metrics["split_notes"]] + [""] if metrics["split_notes"] else []),
        *(["Asked for and not there: " + "; ".join(metrics["notes"]) + ".", ""] if metrics["notes"] else []),
        "## Languages",
        "",
        *markdown_table(
            ("language", "rows"), [[each["language"] or "not detected", each["rows"]] for each in found["languages"][:20]]
        ),
        "## Prompt shapes",
        "",
        "Share of each split; shapes of fewer than five rows are not listed.",
        "",
        *markdown_table(
            ("shape", "rows", "train", "validation", "test"),
            [
                [f"`{each['shape'] or 'none'}`", each["rows"], *(f"{each[split]:z.1%}" for split in SPLITS)]
                for each in found["shapes"]
            ],
        ),
        "## Decisions",
        "",
        "Curated rows and seeds by what became of them.",
        "",
        *markdown_table(("decision", "rows"), sorted(metrics["by_rule"].items())),
        "## Licence",
        "",
        "Logged traffic has no licence of its own: it belongs to the product and its users.",
        *[
            f"Seed `{name}`: {licence or 'no licence was stated'}."
            for name, licence in sorted(about.get("licences", {}).items())
        ],
        "",
        "## Personal data",
        "",
        PII[about.get("pii", "redact")],
        "",
        "## Settings",
        "",
        "```json",
        json.dumps(settings, indent=1, sort_keys=True),
        "```",
        "",
    ]
    write_text(directory / "README.md", "\n".join(lines))


def write_plain_card(directory: Path, what: str, about: Mapping[str, Any], more: Iterable[str] = ()) -> dict[str, Any]:
    """Writes README.md for a dataset whose rows have split, source and reason. more: lines after the counts of rows. Returns
    these counts."""
    files = [directory / f"{split}.parquet" for split in SPLITS if (directory / f"{split}.parquet").exists()]
    with workbench() as connection:
        counted = rows(connection, "composing/card/by_reason", files=[str(file) for file in files]).to_pylist()
    title = "/".join(part for part in (about.get("workload"), about.get("name")) if part) or directory.name
    lines = [
        *metadata(title, [file.stem for file in files], sum(each["rows"] for each in counted)),
        f"# {title}",
        "",
        what,
        "",
        *markdown_table(("split", "source", "reason", "rows"), [list(each.values()) for each in counted]),
        *more,
        "## Personal data",
        "",
        PII[about.get("pii", "redact")],
        "",
    ]
    write_text(directory / "README.md", "\n".join(lines))
    found: dict[str, dict[str, int]] = {}
    for each in counted:
        reasons = found.setdefault(each["source"], {})
        reasons[each["reason"]] = reasons.get(each["reason"], 0) + each["rows"]
    return {"by_source_and_reason": found}


def _tokens(counted: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The section of tokens by tokenizer; nothing where no tokenizer is local."""
    if not counted:
        return []
    lines = [[name, *(splits[split] for split in SPLITS)] for name, splits in counted.items()]
    return [
        "## Tokens",
        "",
        "Of what the rows say, without the chat template's own tokens, by the tokenizer's model.",
        "",
        *markdown_table(("tokenizer", *SPLITS), lines),
    ]


def metadata(
    title: str, splits: Sequence[str], total: int, languages: Sequence[str] = (), synthetic: bool = False
) -> list[str]:
    """The YAML head of a card: what `datasets.load_dataset` and the Hub read."""
    size = next((name for most, name in SIZES if total < most), "10M<n<100M")
    return [
        "---",
        f"pretty_name: {title}",
        "license: other",
        *_listed("language", languages),
        *_listed("size_categories", [size]),
        *_listed("task_categories", ["text-generation"]),
        *_listed("tags", ["millrace", *(["synthetic"] if synthetic else [])]),
        "configs:",
        "- config_name: default",
        "  data_files:",
        *[line for split in splits for line in (f"  - split: {split}", f"    path: {split}.parquet")],
        "---",
        "",
    ]


def _listed(key: str, values: Sequence[str]) -> list[str]:
    return [f"{key}:", *(f"- {json.dumps(value)}" for value in values)] if values else []


def markdown_table(heads: Sequence[str], lines: Iterable[Sequence[Any]]) -> list[str]:
    """A Markdown table, with thousands separated; "none" without lines."""
    written = [
        [f"{value:,}" if isinstance(value, int) else "" if value is None else str(value).replace("|", "\\|") for value in line]
        for line in lines
    ]
    if not written:
        return ["None.", ""]
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(line)} |" for line in written), ""]
