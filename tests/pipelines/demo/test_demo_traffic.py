"""The demo's traffic: what planted.json says is what lies there, read with nothing of the project's own readers."""

import gzip
import json
from collections import Counter
from datetime import date

import pytest

from pipelines.demo.records import TURN_CHARACTERS, make_turn, readable_functions
from pipelines.demo.traffic import TrafficError, card_number, write_traffic


@pytest.fixture(scope="module")
def traffic(tmp_path_factory):
    directory = tmp_path_factory.mktemp("traffic")
    return directory, write_traffic(directory, interactions=300, days=2, seed=3)


def read_logs(directory):
    """Good records and the number of bad ones."""
    good, bad = [], 0
    lines = [
        line
        for path in sorted(directory.glob("gateway/**/*.gz"))
        for line in gzip.decompress(path.read_bytes()).split(b"\n")
        if line
    ]
    for raw in lines + [path.read_bytes() for path in sorted(directory.glob("litellm/**/*.json"))]:
        try:
            record = json.loads(raw)
            messages = record["request"]["messages"] if "request" in record else record["messages"]
            good.append({**record, "seen": messages})
        except (ValueError, KeyError, TypeError):
            bad += 1
    return good, bad


def response_id(record):
    return record["id"] if "call_type" in record else record["response"]["id"]


def test_the_report_counts_what_lies_there(traffic):
    directory, report = traffic
    good, bad = read_logs(directory)
    ids = Counter(map(response_id, good))
    assert len(ids) == report.interactions >= 300
    assert sum(ids.values()) - len(ids) == report.repeated_lines
    assert bad == report.malformed_lines
    assert len(good) + bad == report.records
    texts = [json.dumps(record, ensure_ascii=False) for record in {response_id(r): r for r in good}.values()]
    assert sum(any(mail in text for mail in report.emails) for text in texts) == report.email_interactions > 0
    assert sum(any(card in text for card in report.cards) for text in texts) == report.card_interactions > 0
    failed = [r for r in good if "error" in (r.get("response") or {}) or r.get("status") == "failure"]
    assert len({response_id(r) for r in failed}) == report.failed > 0
    choices = [(response_id(r), choice) for r in good for choice in (r["response"] or {}).get("choices", [])]
    cut = {identity for identity, choice in choices if choice["finish_reason"] == "length"}
    assert len(cut) == report.truncated > 0
    assert json.loads((directory / "planted.json").read_text()) == report.model_dump()
    assert min(report.near_copies, report.retried_duplicates, report.late, report.repeated_lines) > 0
    assert min(report.malformed.values()) > 0 and len(report.malformed) == 5
    assert min(report.feedback.values()) > 0 and len(report.by_workload) == 2 == len(report.by_layout)


def test_later_turns_carry_the_history(traffic):
    good, _ = read_logs(traffic[0])
    assert {len(record["seen"]) for record in good} == {2, 4, 6, 8}
    assert all(record["seen"][0]["role"] == "system" and record["seen"][-1]["role"] == "user" for record in good)


def test_held_out_functions_and_seeds_stay_out_of_the_logs_but_for_the_leaks(traffic):
    directory, report = traffic
    good, _ = read_logs(directory)
    shown = "\n\0".join(message["content"] for record in good for message in record["seen"])
    shown += "\n\0".join(
        choice["message"]["content"] for record in good for choice in (record["response"] or {}).get("choices", [])
    )
    evals = [json.loads(line) for line in (directory / "evals/heldout_functions.jsonl").read_text().splitlines()]
    assert len(evals) == report.evals == len({item["id"] for item in evals})
    leaked = {item["id"] for item in evals if item["answer"] in shown}
    assert leaked == set(report.leaked_evals) and 0 < len(leaked) < len(evals)
    seeds = [json.loads(line)["messages"] for line in (directory / "seeds.jsonl").read_text().splitlines()]
    assert len(seeds) == report.seeds
    assert not [seed for seed in seeds if seed[-1]["content"] in shown and len(seed[-1]["content"]) > 200]


def test_feedback_points_at_what_was_logged(traffic):
    directory, report = traffic
    good, _ = read_logs(directory)
    ids = set(map(response_id, good))
    sessions = {r.get("trace_id") or r["request"]["metadata"]["session_id"] for r in good}
    thumbs = [json.loads(line) for path in directory.glob("feedback/*.jsonl") for line in path.read_text().splitlines()]
    assert len(thumbs) == report.feedback["up"] + report.feedback["down"]
    assert all(thumb["response_id"] in ids if "response_id" in thumb else thumb["session_id"] in sessions for thumb in thumbs)


def test_same_arguments_same_bytes_other_seed_other_bytes(traffic, tmp_path):
    directory, _ = traffic
    write_traffic(tmp_path / "again", interactions=300, days=2, seed=3)
    write_traffic(tmp_path / "again", interactions=300, days=2, seed=3)
    files = sorted(path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    again = tmp_path / "again"
    assert files == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    assert all((directory / path).read_bytes() == (again / path).read_bytes() for path in files)
    other = write_traffic(tmp_path / "other", interactions=300, days=2, seed=4, first_day=date(2026, 1, 30))
    assert set(other.by_day) == {"2026-01-30", "2026-01-31"}
    assert (tmp_path / "other/seeds.jsonl").read_bytes() != (directory / "seeds.jsonl").read_bytes()


def test_turns_have_the_length_a_tiny_model_can_read():
    functions = readable_functions()
    assert len(functions) > 2000 and len({function.source for function in functions}) > 2000
    turns = [
        turn for function in functions[::7] for kind in ("write", "complete", "explain") if (turn := make_turn(function, kind))
    ]
    assert {turn.kind for turn in turns} == {"write", "complete", "explain"}
    for turn in turns:
        assert TURN_CHARACTERS[0] <= len(turn.question) + len(turn.answer) <= TURN_CHARACTERS[1]
        if turn.kind == "explain":
            assert turn.answer not in turn.question


def test_card_numbers_pass_luhn():
    import random

    for seed in range(50):
        digits = [int(digit) for digit in card_number(random.Random(seed)).replace(" ", "")]
        doubled = [digit if index % 2 else sum(divmod(2 * digit, 10)) for index, digit in enumerate(digits)]
        assert len(digits) == 16 and sum(doubled) % 10 == 0


def test_too_little_and_too_much_are_refused(tmp_path):
    with pytest.raises(TrafficError, match="at least 100"):
        write_traffic(tmp_path, interactions=20)
    with pytest.raises(TrafficError, match="more than the"):
        write_traffic(tmp_path, interactions=1_000_000)
    assert not list(tmp_path.iterdir())
