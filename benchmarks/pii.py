"""What the personal-data patterns find, and what they take for it: precision and recall on labelled texts, by kind.

    python -m benchmarks.pii [--quick]        # seconds; --quick records nothing
    python -m benchmarks.pii --show           # every miss and every false alarm as well

The texts are those of benchmarks/pii_cases.py: some 600 with a value each, in the forms of many countries, in prose and
in code, and some 700 that only look so. A value counts as found where a span of its kind covers exactly it; every other
span is a false alarm. The patterns and the texts have one author: what the figures show is that no form is lost, not
how often people use others. Beside them the hits in real texts of ../shared, where there is hardly anything to find:
problems, code, prompts, an airline's agent. `scan_missed` counts labelled texts that the quick pass over bytes
(resources/curating/personal_data/pii_scan.py) would not let the patterns see; it must be 0.
"""

import argparse
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.pii_cases import Case, cases
from benchmarks.record import record
from resources.curating.personal_data.pii_scan import might_hold
from resources.curating.pii_patterns import PERSONAL_DATA_KINDS, find_personal_data

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="record nothing")
    parser.add_argument("--show", action="store_true", help="print misses and false alarms")
    given = parser.parse_args()
    figures = measure(list(cases()), given.show)
    record("pii", figures | {"hits_in_real_texts": _real_texts(given.show)}, keep=not given.quick)


def measure(labelled: list[Case], show: bool = False) -> dict[str, Any]:
    """Precision and recall, in all and by kind, and recall or false alarms by group of cases."""
    right: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    groups: dict[str, Counter[str]] = {}
    for case in labelled:
        found = Counter((span.kind, case.text[span.start : span.end]) for span in find_personal_data(case.text))
        wanted = Counter(case.values)
        outcomes = ((wanted & found, right, ""), (wanted - found, missed, "missed"), (found - wanted, wrong, "wrong"))
        for values, into, word in outcomes:
            for kind, value in values.elements():
                into[kind] += 1
                groups.setdefault(case.group, Counter())[word or "right"] += 1
                if show and word:
                    print(f"{word:7} {kind:7} {value!r} in {case.text!r}")
    holding = [case for case in labelled if case.values]
    seen = might_hold(
        pa.array([json.dumps([{"content": case.text}], ensure_ascii=number % 2 == 0) for number, case in enumerate(holding)])
    )
    return {
        "precision": _share(right.total(), wrong.total()),
        "recall": _share(right.total(), missed.total()),
        "positives": len(holding),
        "negatives": len(labelled) - len(holding),
        "scan_missed": int((~seen).sum()),
        "by_kind": {
            kind: {
                "precision": _share(right[kind], wrong[kind]),
                "recall": _share(right[kind], missed[kind]),
                "values": right[kind] + missed[kind],
            }
            for kind in PERSONAL_DATA_KINDS
        },
        "groups_with_mistakes": {
            name: dict(counts) for name, counts in sorted(groups.items()) if counts["missed"] or counts["wrong"]
        },
    }


def _share(part: int, rest: int) -> float | None:
    return round(part / (part + rest), 4) if part + rest else None


def _real_texts(show: bool) -> dict[str, dict[str, Any]]:
    if not SHARED.is_dir():
        return {}
    texts = {
        "gsm8k_train": [f"{row['question']}\n{row['answer']}" for row in _rows(SHARED / "gsm8k_train.jsonl")],
        "gsm8k_test": [f"{row['question']}\n{row['answer']}" for row in _rows(SHARED / "gsm8k_test.jsonl")],
        "humaneval": [row["prompt"] + row["canonical_solution"] + row["test"] for row in _rows(SHARED / "HumanEval.jsonl.gz")],
        "spec_bench": ["\n".join(row["turns"]) for row in _rows(SHARED / "spec_bench_question.jsonl")],
        "bfcl": [json.dumps(row) for row in _rows(SHARED / "bfcl_simple_python.json")],
        "tau_airline": [
            str(message["content"])
            for trial in json.loads((SHARED / "tau_airline.json").read_text())
            for message in trial["traj"]
        ],
    }
    found = {}
    for name, rows in texts.items():
        hits = [
            (span.kind, text[span.start : span.end], text[max(0, span.start - 40) : span.end + 20])
            for text in rows
            for span in find_personal_data(text)
        ]
        found[name] = {"texts": len(rows), "hits": dict(Counter(kind for kind, _, _ in hits))}
        for hit in hits if show else ():
            print(name, *map(repr, hit))
    return found


def _rows(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    return [json.loads(line) for line in text.splitlines()]


if __name__ == "__main__":
    main()
