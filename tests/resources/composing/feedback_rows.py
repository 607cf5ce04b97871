"""Cleaned answers with feedback on them, written without ingest and cleaning, and what the preference dataset makes of them."""

import hashlib
import json
from collections import Counter
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
from interaction_rows import START, interaction, store, thumb

from resources.composing.dataset_settings import DatasetSettings, PreferenceSettings
from resources.composing.preferences import build_preferences
from resources.curating.curation import CurationSettings
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables

ALL = DatasetSettings(test_share=0, validation_share=0)
SPLITS = ("train", "validation", "test")


def said(text):
    return {"role": "assistant", "content": text}


def asked(text):
    return {"role": "user", "content": text}


def line(number, prompt, chosen, rejected, other_prompt=None):
    """The two rows of one log line that prefers an answer, and their feedback."""
    rows = [
        interaction(
            f"{number}{side}",
            question,
            answer,
            request_id=f"r{number}",
            session_id=f"line{number}",
            source_format="preferences",
            source_row=number,
            choice_index=part,
        )
        for part, (side, question, answer) in enumerate((("c", prompt, chosen), ("r", other_prompt or prompt, rejected)))
    ]
    about = {"name": "preference", "source": "preferences"}
    return rows, [thumb(1, interaction_id=f"i{number}c", **about), thumb(-1, interaction_id=f"i{number}r", **about)]


def keep(tables, rows, feedback=()):
    """Stores raw and cleaned rows. A row may have `request` and `reasoning`, which cleaning would read from the log."""
    cleaned = []
    for row in rows:
        more = {name: row.pop(name) for name in ("request",) if name in row}
        found = dict.fromkeys(SCHEMAS["cleaned_interactions"].names)
        found |= {name: row[name] for name in found if name in row} | more
        found |= {
            "status": "ok",
            "language": "en",
            "prompt_characters": len(row["messages"]),
            "completion_characters": len(row["completion"]),
            "normalised_sha256": hashlib.sha256((row["messages"] + row["completion"]).lower().encode()).hexdigest(),
            "signature": [],
        }
        cleaned.append(found)
    store(tables, "interactions", rows)
    store(tables, "cleaned_interactions", cleaned)
    if feedback:
        store(tables, "feedback", list(feedback))


def decide(tables, **rules):
    """Curation's decisions of the version `v`, by interaction."""
    store_as = [
        {
            "workload": "tutor",
            "stage": "curate",
            "version": "v",
            "dt": START.date(),
            "interaction_id": name,
            "rule": rule,
            "kept": False,
        }
        for name, rule in rules.items()
    ]
    table = pa.Table.from_pylist(
        [dict.fromkeys(SCHEMAS["decisions"].names) | each for each in store_as], schema=SCHEMAS["decisions"]
    )
    tables.replace("decisions", table, workload="tutor", stage="curate", version="v")


class Made:
    """A preference dataset of kept rows: pairs and answers by split, and its counts."""

    def __init__(self, folder, rows=(), feedback=(), splits=ALL, curation=None, tables=None, **settings):
        more = {name: settings.pop(name) for name in ("eval_items", "lent", "taught", "ratings") if name in settings}
        if tables is None:
            tables = Tables(LakeLayout.open(folder / "lake"))
            keep(tables, rows, feedback)
        self.folder = folder / "made"
        self.counts = build_preferences(
            tables, "tutor", self.folder, PreferenceSettings(**settings), splits, curation or CurationSettings(), "v", **more
        )
        self.pairs, self.answers = (
            [row for split in SPLITS for row in pq.read_table(self.folder / f"{prefix}{split}.parquet").to_pylist()]
            for prefix in ("", "unpaired_")
        )
        self.card = (self.folder / "README.md").read_text()

    @property
    def texts(self):
        """(reason, chosen text, rejected text) of the pairs, sorted."""
        return sorted(
            (row["reason"], *(json.loads(row[side])[0]["content"] for side in ("chosen", "rejected"))) for row in self.pairs
        )

    @property
    def dropped(self):
        return Counter(self.counts["dropped"]["pairs"])


def at(minute):
    return datetime(2026, 6, 1, 20, minute, tzinfo=UTC)
