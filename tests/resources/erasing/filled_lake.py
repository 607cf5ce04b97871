"""A lake with one user's marked texts in every place where a lake may show them."""

import json
import sqlite3
from contextlib import closing

from model_ops.files.atomic_files import write_json
from resources.artefacts.registry import Registry
from resources.catalog.build import rebuild
from resources.composing.datasets import DatasetSettings, build_sft_dataset
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.selection import curate
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.manifests.manifest import Input
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings

MARK = "zebra-quartz-4711"
"""In every text of the user ann."""

CURATION = CurationSettings(decontamination={"enabled": False})
SESSIONS = {"ann": ["ann-1", "ann-2"], "bob": ["bob-1", "bob-2", "bob-3"], "eve": ["eve-1", "eve-2"]}


def pair(request, user, session, messages, answer, day):
    body = {"model": "m", "messages": messages, "user": user}
    asked = {name: value for name, value in body.items() if value is not None}
    choices = [{"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}]
    response = {"id": request, "object": "chat.completion", "model": "m", "choices": choices}
    return {"request": asked, "session_id": session, "timestamp": f"2026-06-0{day}T10:00:00Z", "response": response}


def records():
    """Two turns of each session; the second repeats the first. ann's second turn in ann-2 names no user."""
    found = []
    for user, sessions in SESSIONS.items():
        for number, session in enumerate(sessions):
            mark = f"{MARK} zebras " if user == "ann" else ""  # a word of hers names the shape of her prompts
            asked = f"{mark}How do I grind wheat number {number} for {user} in an old mill by the river?"
            first = [{"role": "system", "content": "You help millers."}, {"role": "user", "content": asked}]
            whose, day = f"of {user} number {number}", 1 + number % 2
            answer = f"Set the {mark}stones {whose} close and feed the grain slowly, then sift the flour twice."
            then = {"role": "user", "content": f"And how is the {mark}flour {whose} kept dry in winter?"}
            later = [*first, {"role": "assistant", "content": answer}, then]
            last = f"Keep the {mark}flour {whose} in a wooden chest above the oven, away from walls."
            asker = None if session == "ann-2" else user
            found.append(pair(f"request-{session}-1", user, session, first, answer, day))
            found.append(pair(f"request-{session}-2", asker, session, later, last, day))
    return found


def write_logs(home):
    home.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record) for record in records()]
    broken = json.dumps({"request": {"messages": "none", "user": "ann"}, "response": {"id": "x"}, "note": MARK})
    (home / "gateway.jsonl").write_text("\n".join([*lines, broken, '{"user": "ann", "cut": "' + MARK]) + "\n")
    thumbs = [
        {"request_id": "request-ann-1-1", "score": 1, "comment": f"{MARK} is right", "timestamp": "2026-06-01T11:00:00Z"},
        {"request_id": "request-bob-1-1", "score": 0, "comment": "bob says no", "timestamp": "2026-06-01T11:00:00Z"},
    ]
    (home / "thumbs.jsonl").write_text("".join(json.dumps(thumb) + "\n" for thumb in thumbs))


def sources(home):
    return {name: SourceSettings(uri=str(home / f"{name}.jsonl")) for name in ("gateway", "thumbs")}


def made(registry, kind, name, inputs, fill, op=None):
    draft = registry.draft(kind, name, op=op or name, sources=("resources/lake/lake.py",), config={}, inputs=inputs)
    if draft.finished is None:
        fill(draft.directory)
    return draft.finished or registry.finish(draft, {})


def learnt_datasets(lake):
    """curated_interactions and sft_dataset of cleaned rows."""
    tables, registry = Tables(lake), Registry(lake, "tutor")
    inputs, split = (
        [Input(kind="table", name="interactions", digest="1" * 64)],
        DatasetSettings(test_share=0, validation_share=0),
    )

    def select(output):
        curate(tables, "tutor", output, CURATION, None)

    def compose(output):
        build_sft_dataset(registry.directory(curated) / "curated.parquet", None, output, split, tables)

    curated = made(registry, "dataset", "curated_interactions", inputs, select)
    return curated, made(registry, "dataset", "sft_dataset", [curated.as_input()], compose)


def filled(home, logs):
    """Logs to a release, by the project's own steps where they need no weights."""
    lake = LakeLayout.open(home)
    tables, registry = Tables(lake), Registry(lake, "tutor")
    ingest(tables, "tutor", sources(logs))
    days = sorted(tables.rows_by_day("interactions", "tutor"))
    clean(tables, "tutor", days, CURATION)
    _, rows = learnt_datasets(lake)
    shown = made(registry, "dataset", "length_report", [rows.as_input()], lambda output: _rendered(output, lake))
    model = made(registry, "model", "sft_model", [rows.as_input()], _weights)
    made(registry, "model", "merged_model", [model.as_input()], _weights)
    made(registry, "model", "untaught_model", [], _weights)
    release = made(registry, "release", "release", [model.as_input()], lambda output: _release(output, lake, model))
    write_json(lake.endpoint("tutor"), {"workload": "tutor", "generation": 1, "champion": release.version})
    _further(lake, registry.directory(shown))
    rebuild(lake)
    return lake


def _weights(output):
    output.mkdir(parents=True, exist_ok=True)
    (output / "model.safetensors").write_bytes(b"weights")


def _rendered(output, lake):
    output.mkdir(parents=True, exist_ok=True)
    texts = "\n".join(str(row["messages"]) for row in Tables(lake).open("interactions").to_pyarrow_table().to_pylist())
    (output / "rendered.md").write_text(texts)
    (output / "lengths.json").write_text("{}")
    (output / "side_by_side.jsonl").write_text("".join(json.dumps(line) + "\n" for line in _side_by_side(lake)))


def _side_by_side(lake):
    """Rows as an evaluation report keeps them for the approval page."""
    rows = Tables(lake).open("interactions").to_pyarrow_table().to_pylist()
    said = [{"role": "user", "text": message["content"]} for message in json.loads(rows[0]["messages"])]
    line = {"kind": "regression", "change": 0.5, "target_loss": 2.0, "champion_loss": 1.5, "tokens": 9, "ts": None}
    line |= {"target": "no", "champion": "yes"}
    return [
        {
            **line,
            "row_id": row["interaction_id"],
            "logged": json.loads(row["completion"])["content"],
            "prompt": [{"role": each["role"], "text": each["content"]} for each in json.loads(row["messages"])] or said,
        }
        for row in rows
    ]


def _release(output, lake, model):
    from model_ops.speculators.registry import ARCHITECTURES
    from resources.releases.release import write_release
    from resources.releases.settings import Gates
    from resources.releasing.gates import GateInputs, check_gates
    from resources.releasing.model_card import render
    from resources.releasing.summary import Summary

    output.mkdir(parents=True, exist_ok=True)
    [gate] = check_gates(Gates(**{**dict.fromkeys(Gates.model_fields), "erased_rows": 0}), GateInputs([]))
    write_release(output, "tutor", model, None, 0, [gate], ARCHITECTURES["eagle3"].serving)
    rows = Tables(lake).open("interactions").to_pyarrow_table().to_pylist()
    row = next(row["interaction_id"] for row in rows if MARK in row["messages"])
    (output / "report.md").write_text(f"worst row: {row}\n")
    summary = Summary("tutor", None, {}, {}, {}, False, gates=[gate], release=output.name)
    about = {"champion": "0123456789ab", "sections": [], "beside": {}, "other": "champion", "harm": "", "why": "", "gains": []}
    (output / "approval.html").write_text(render("approval.html.j2", summary=summary, worst=_side_by_side(lake), **about))


def _further(lake, shown):
    """Answers of teachers, Dagster's history, a run's folder, unfinished work, a sweep's log."""
    (lake.root / "answers").mkdir()
    answer = {"model": "t", "failure": "", "finish_reason": "stop", "prompt_tokens": 1, "answer_tokens": 1, "cost": 0.0}
    lines = [
        {"key": "k1", "answer": {**answer, "message": {"content": f"the {MARK} flour of ann number 0 stays dry"}}},
        {"key": "k2", "answer": {**answer, "finish_reason": "judge", "message": {"quality": 7}}},
    ]
    (lake.root / "answers" / "tutor.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    history = lake.dagster_home / "history" / "runs"
    history.mkdir(parents=True)
    event = {"__class__": "EventLogEntry", "metadata": {"what_is_learnt": (shown / "rendered.md").read_text(), "n": 1}}
    with closing(sqlite3.connect(history / "run.db")) as database:
        database.execute("pragma journal_mode = wal")
        database.execute("create table event_logs (id integer primary key, event text)")
        database.execute("insert into event_logs (event) values (?)", (json.dumps(event),))
        database.execute("insert into event_logs (event) values ('{\"n\": 2}')")
        database.commit()
    folder = lake.dagster_home / "submitted" / "1"
    folder.mkdir(parents=True)
    (folder / "run.log").write_text(f"a line\nKeyError: And how is the {MARK} flour of ann number 0 kept dry in winter?\n")
    unfinished = lake.root / "models" / "tutor" / "sft_model" / "0123456789ab" / ".work"
    unfinished.mkdir(parents=True)
    (unfinished / "tokens.npy").write_bytes(MARK.encode())
    (lake.root / ".remembered").mkdir(exist_ok=True)
    (lake.root / ".remembered" / "x.json").write_text(MARK)
