"""Rehearses the datasets of a recipe on its logs by the run's own code, in a temporary lake: how many rows each training will
have, and whose. Of logs of more than MOST_BYTES a random part is read, and counts are scaled by bytes. A judge, a teacher and
embeddings are not asked."""

import glob
import gzip
import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from itertools import islice
from pathlib import Path

from resources.composing import (
    DatasetError,
    DatasetSettings,
    EvalSettings,
    PreferenceSettings,
    RlPromptSettings,
    SeedSettings,
    build_eval_suite,
    build_preferences,
    build_rl_prompts,
    build_sft_dataset,
    import_seeds,
)
from resources.curating import CurationSettings, clean, curate
from resources.inspecting.overview import LISTED
from resources.lake import LakeLayout, Tables, attach_slice, rows, workbench
from resources.reading import UnreadKey, ingest
from resources.sources import LogObject, SourceSettings, list_objects, local_path, open_object

MOST_BYTES = 8_000_000
MEASURED_ROWS = 200
"""Rows whose length is measured."""
MOST_OBJECTS = 50
"""Most bytes of logs that are read, a second or two, and most objects where these are more."""


@dataclass(frozen=True)
class Asked:
    """The parts of a recipe that decide which rows there are."""

    workload: str
    sources: Mapping[str, SourceSettings]
    seeds: Mapping[str, SeedSettings]
    evals: Mapping[str, EvalSettings]
    curation: CurationSettings
    sft: DatasetSettings
    preference: PreferenceSettings | None = None
    rl_prompts: RlPromptSettings | None = None
    first_day: date | None = None
    last_day: date | None = None
    listed: Mapping[str, list[LogObject]] = field(default_factory=dict)
    """Objects of sources that a first look has listed; the others are listed here."""


@dataclass
class Rehearsal:
    """Rows by split, for all logs. with_user, with_session: of `requests`, which were read."""

    share: float = 1.0
    """Share of the logs' bytes that was read."""
    requests: int = 0
    with_user: int = 0
    with_session: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    pairs: dict[str, int] = field(default_factory=dict)
    unpaired: dict[str, int] = field(default_factory=dict)
    prompts: dict[str, int] = field(default_factory=dict)
    characters: list[int] = field(default_factory=list)
    """Characters of the messages and tools of the first training rows."""
    pair_characters: float = 0.0
    """The same of a pair: prompt and both answers."""
    items: Counter[str] = field(default_factory=Counter)
    """Items of each evaluation suite that are asked."""
    unread: dict[str, list[UnreadKey]] = field(default_factory=dict)
    """Keys that nothing reads, by source."""


def rehearse(asked: Asked, folder: Path) -> Rehearsal | None:
    """folder: an empty one, where the datasets stay, by their names. None where no part can be read, or the part that is read
    leaves nothing to train on. Raises what a run would raise: DatasetError where nothing is left to train on, and the errors of
    sources, suites and seeds."""
    sources, share = _within(asked, folder / "heads")
    try:
        return _rehearsed(asked, sources, share, folder) if sources else None
    except DatasetError:
        if share < 1:  # the whole may have what a part lacks
            return None
        raise


def _rehearsed(asked: Asked, sources: dict[str, SourceSettings], share: float, folder: Path) -> Rehearsal:
    rehearsal, tables = Rehearsal(share), Tables(LakeLayout.open(folder / "lake"))
    report = ingest(tables, asked.workload, sources)
    for name, keys in report.unread_keys.items():
        rehearsal.unread.setdefault(name.partition("/")[0], []).extend(keys)
    with workbench() as connection:
        attach_slice(connection, tables, "interactions", asked.workload)
        (counts,) = rows(connection, "inspecting/people").to_pylist()
    rehearsal.requests, rehearsal.with_user, rehearsal.with_session = (
        counts["requests"],
        counts["with_user"],
        counts["with_session"],
    )
    days = [
        day
        for day in sorted(tables.rows_by_day("interactions", asked.workload))
        if (asked.first_day or day) <= day <= (asked.last_day or day)
    ]
    compared = asked.curation.semantic_duplicates.model_copy(update={"enabled": False})
    curation = asked.curation.model_copy(update={"judge": None, "semantic_duplicates": compared})
    build_eval_suite(dict(asked.evals), folder / "suite")
    items = folder / "suite" / "items.parquet"
    tasks = (folder / "suite" / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    rehearsal.items = Counter(json.loads(task)["suite"] for task in tasks)
    clean(tables, asked.workload, days, curation)
    curate(tables, asked.workload, folder / "curated", curation, items)
    seeds = {name: seed for name, seed in asked.seeds.items() if seed.uri is not None}
    import_seeds(seeds, folder / "seeds")
    sft = build_sft_dataset(
        folder / "curated" / "curated.parquet", folder / "seeds" / "seeds.parquet", folder / "sft_dataset", asked.sft
    )
    rehearsal.rows = {split: round(count / share) for split, count in sft.rows.items()}
    if asked.preference is not None:
        output = folder / "preference_dataset"
        summary = build_preferences(
            tables, asked.workload, output, asked.preference, asked.sft, curation, "curated", items, sft.lent
        )
        rehearsal.pairs = {split: round(count / share) for split, count in summary["rows"].items()}
        rehearsal.unpaired = {split: round(count / share) for split, count in summary["unpaired"].items()}
    if asked.rl_prompts is not None:
        summary = build_rl_prompts(
            tables,
            asked.workload,
            folder / "rl_prompts",
            asked.rl_prompts,
            asked.sft,
            items,
            curation.decontamination,
            lent=sft.lent,
        )
        rehearsal.prompts = summary["rows"]
    with workbench() as connection:
        file = str(folder / "sft_dataset" / "train.parquet")
        sizes = rows(connection, "inspecting/row_characters", file=file, most=MEASURED_ROWS)
        rehearsal.characters = sizes["characters"].to_pylist()
        if any(rehearsal.pairs.values()):
            file = str(folder / "preference_dataset" / "train.parquet")
            (pair,) = rows(connection, "inspecting/pair_characters", file=file).to_pylist()
            rehearsal.pair_characters = pair["characters"] or 0.0
    return rehearsal


def _within(asked: Asked, folder: Path) -> tuple[dict[str, SourceSettings], float]:
    """The sources, or parts of them as sources of their own, named SOURCE/N, and the share of the bytes that they hold."""
    sources, listed = asked.sources, list[LogObject]()
    for name, source in sources.items():
        listed += asked.listed.get(name) or islice(list_objects(name, source), LISTED)
    total = sum(item.bytes for item in listed)
    if total <= MOST_BYTES and len(listed) < LISTED:
        return dict(sources), 1.0
    random.Random(0).shuffle(listed)  # days differ
    held = 0
    taken: dict[str, SourceSettings] = {}
    for item in listed[:MOST_OBJECTS]:
        if held + item.bytes <= MOST_BYTES:
            uri, size = glob.escape(item.uri) if local_path(item.uri) else item.uri, item.bytes
        else:
            uri, size = _head(item, folder / f"{len(taken)}", MOST_BYTES // (1 + min(len(listed), 10)))
        if size:
            taken[f"{item.source}/{len(taken)}"] = sources[item.source].model_copy(update={"uri": uri})
            held += size
        if held >= MOST_BYTES:
            break
    return taken, held / max(1, total)


def _head(item: LogObject, folder: Path, most: int) -> tuple[str, int]:
    """The first lines of a large object, as a file in `folder`, and the object's bytes that they took: 0 if it has no lines."""
    if item.uri.endswith((".parquet", ".zst", ".zstd")):
        return "", 0
    with open_object(item) as file:
        text = gzip.GzipFile(fileobj=file).read(most) if item.uri.endswith(".gz") else file.read(most)
        size = file.tell() if item.uri.endswith(".gz") else len(text)
    text = text[: text.rfind(b"\n") + 1]
    folder.mkdir(parents=True)
    place = folder / Path(item.uri).name.removesuffix(".gz")
    place.write_bytes(text)
    return glob.escape(str(place)), size if text else 0
