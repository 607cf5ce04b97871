"""The fixtures of all formats with every column that `fields` may name in each record, under keys that nothing else reads.

write_marked(logs, ["preferences", "otlp_traces"])      # one file each
fields_of("otlp_traces")                                # the `fields` that name them
"""

import json
from pathlib import Path

from resources.records.synonyms import FIELDS

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/formats"
NAMES = sorted({path.name for path in FIXTURES.iterdir()} | {"openai_batch.jsonl", "feedback.jsonl"})
MARK = "zebra-quartz-4711"
VALUES = {
    "user": f"U-{MARK}",
    "session": f"S-{MARK}",
    "time": "2026-01-02T03:04:05Z",
    "id": f"ID-{MARK}-%d",
    "model": f"M-{MARK}",
    "provider": f"P-{MARK}",
    "status": "error",
    "cost": 0.125,
    "latency": 321.0,
    "ttft": 12.0,
    "prompt_tokens": 71,
    "completion_tokens": 93,
    "feedback": "up",
    "workload": "w1",
}
assert VALUES.keys() == FIELDS
BATCH = [
    {"custom_id": "c1", "method": "POST", "url": "/v1", "body": {"messages": [{"role": "user", "content": "what is it"}]}},
    {"id": "b1", "custom_id": "c1", "response": {"body": {"id": "r1", "choices": [{"message": {"role": "assistant", "content": "a lamp"}}]}}},
]  # fmt: skip
FEEDBACK = [{"response_id": "r9", "score": -1, "comment": "not good at all"}]


def fields_of(name, but=()):
    inside = '["zz.{}"]' if name.startswith("otlp") else "zz.{}"
    return {column: inside.format(column) for column in VALUES if column not in but}


def write_marked(logs, names, said=""):
    """said: what every text of several words gets at its end."""
    for name in names:
        folder = logs / name.partition(".")[0]
        folder.mkdir(parents=True)
        lines = [json.dumps(_marked(name, number, record, said)) for number, record in enumerate(_records(name))]
        (folder / "log.jsonl").write_text("\n".join(lines) + "\n")


def _records(name):
    if name == "openai_batch.jsonl":
        return BATCH
    if name == "feedback.jsonl":
        return FEEDBACK
    text = (FIXTURES / name).read_text()
    return [json.loads(text)] if name.endswith(".json") else [json.loads(line) for line in text.splitlines() if line.strip()]


def _marked(name, number, record, said):
    told = {column: value % number if column == "id" else value for column, value in VALUES.items()}
    record = _said(record, said)
    if name.startswith("otlp"):
        attributes = [{"key": f"zz.{column}", "value": {"stringValue": str(value)}} for column, value in told.items()]
        for sent in [*record.get("resourceSpans", []), *record.get("resourceLogs", [])]:
            sent.setdefault("resource", {}).setdefault("attributes", []).append(attributes[0])  # the user
            for scope in [*sent.get("scopeSpans", []), *sent.get("scopeLogs", [])]:
                for item in [*scope.get("spans", []), *scope.get("logRecords", [])]:
                    item.setdefault("attributes", []).extend(attributes[1:])
        return record
    return {**record, "zz": told}


def _said(value, said):
    if isinstance(value, dict):
        return {key: _said(inner, said) for key, inner in value.items()}
    if isinstance(value, list):
        return [_said(inner, said) for inner in value]
    return f"{value} {said}" if said and isinstance(value, str) and value.count(" ") > 1 and value[:1] not in "{[" else value
