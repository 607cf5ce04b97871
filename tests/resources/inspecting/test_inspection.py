"""A look at logs: counts that are exact, verdicts that follow their thresholds, sentences for what cannot be looked at."""

import io
import json
from collections import Counter
from dataclasses import replace

import pytest

from pipelines.demo.traffic import write_traffic
from pipelines.terminal.inspection_text import print_inspection
from pipelines.terminal.shared_options import PlainConsole
from resources.inspecting.findings import verdicts_of
from resources.inspecting.inspection import InspectError, _uri_of, inspect
from resources.inspecting.inspection_page import day_bars, sections, short, write_page
from resources.sources.sources import SourceError
from tests.logged import pair


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.fixture(scope="module")
def traffic(tmp_path_factory):
    home = tmp_path_factory.mktemp("inspect") / "traffic"
    write_traffic(home, interactions=300, days=2)
    return home


@pytest.fixture(scope="module")
def found(traffic):
    return inspect([str(traffic / "gateway"), str(traffic / "litellm"), str(traffic / "feedback")])


def test_what_was_planted_is_found(found, traffic):
    planted = json.loads((traffic / "planted.json").read_text())
    feedback = sum(item["records"] for item in found.feedback)
    quarantined = sum(item["lines"] for item in found.quarantined)
    assert found.totals["rows"] + found.repeated["rows"] + quarantined == planted["records"] == found.read - feedback
    assert found.repeated["rows"] == planted["repeated_lines"]
    assert {item["format"] for item in found.formats} >= {"openai_pairs", "litellm", "feedback"}
    assert {item["name"] for item in found.workloads} == {"code-chat", "code-completion"}
    assert sum(item["rows"] for item in found.days) == sum(item["rows"] for item in found.workloads) == found.totals["rows"]
    assert sum(decision["rows"] for decision in found.decisions) == found.sample_rows == found.totals["rows"]
    assert not found.sampled
    assert {item["kind"] for item in found.pii} >= {"EMAIL"}
    assert 0 < found.usable_share < 1 and 0 < found.dropped("near_duplicate", "exact_duplicate") < 0.3
    dropped = {decision["rule"]: decision["rows"] for decision in found.decisions if decision["rule"] != "kept"}
    shown = Counter(example["rule"] for example in found.examples)
    assert shown == {rule: min(rows, 3) for rule, rows in dropped.items()}
    assert all(str(traffic) in example["place"] for example in found.examples)
    near = [example for example in found.examples if example["rule"] == "near_duplicate"]
    assert all(str(traffic) in example["kept_place"] and example["detail"].startswith("similarity") for example in near)


def test_a_drafter_is_tried_on_the_answers(found):
    assert found.acceptance["rows"] > 250 and found.acceptance["exact_rows"] == 0
    assert 1 < found.acceptance["K3"] <= found.acceptance["K5"] < 6
    assert set(found.acceptance["workloads"]) == {"code-chat", "code-completion"}
    assert any(shape["acceptance"] for shape in found.shapes)


@pytest.mark.slow
def test_answers_that_repeat_their_prompt_are_accepted_and_logged_token_ids_are_taken(tmp_path):
    text = " ".join(f"word{number}" for number in range(80))
    copied = inspect([write(tmp_path / "copied.jsonl", [pair(n, f"{n}: repeat {text}", text) for n in range(30)])])
    fresh = inspect([write(tmp_path / "fresh.jsonl", [pair(n, f"write number {n}", text) for n in range(30)])])
    assert copied.acceptance["K3"] > 3.5 and fresh.acceptance["K3"] < 2
    records = [pair(n, f"write number {n}", text) for n in range(30)]
    for record in records:
        record["response"] |= {"prompt_token_ids": list(range(40))}
        record["response"]["choices"][0] |= {"token_ids": list(range(40))}
    exact = inspect([write(tmp_path / "exact.jsonl", records)])
    assert (exact.acceptance["exact_rows"], exact.acceptance["pieces_rows"]) == (30, 0)
    assert exact.acceptance["K3"] == pytest.approx(39 / 10)


def test_a_sample_keeps_the_counts_exact_and_says_so(traffic, found):
    sampled = inspect([str(traffic / "gateway"), str(traffic / "litellm"), str(traffic / "feedback")], sample=100)
    assert sampled.sampled and 20 < sampled.sample_rows < 220
    assert sampled.totals == found.totals and sampled.days == found.days and sampled.quarantined == found.quarantined
    assert any("lower bound" in section.note for section in sections(sampled))
    assert any("at most about" in check.value for verdict in sampled.verdicts for check in verdict.checks)


def test_some_objects_only(traffic):
    some = inspect([str(traffic / "gateway")], limit_objects=3)
    assert sum(item["objects"] for item in some.formats) == 3
    assert any("Only 3 objects" in section.note for section in sections(some))


def test_shares_of_languages_are_of_all_answers_also_of_unknown_ones(found):
    healthy = sum(item["rows"] for item in found.languages)
    assert None in {item["language"] for item in found.languages}
    assert [item["share"] for item in found.languages] == [item["rows"] / healthy for item in found.languages]
    [table] = [section for section in sections(found) if section.title == "Languages"]
    assert table.rows[-1][0] == "(unknown)"
    assert sum(float(row[2].rstrip("%")) for row in table.rows) == pytest.approx(100, abs=1)


@pytest.mark.parametrize(
    ("tokens_out", "said", "passed"),
    [(3160, "31.6", False), (3199.9, "31.999", False), (3200, "32", True), (3204, "32.04", True)],
)
def test_a_measure_never_looks_like_the_bound_that_it_misses(found, tokens_out, said, passed):
    short = replace(found, totals={**found.totals, "rows": 100, "tokens_out": tokens_out})
    [check] = [check for check in verdicts_of(short)[0].checks if check.name.startswith("tokens in an answer")]
    assert (check.value, check.wanted, check.passed) == (said, "at least 32", passed)


def test_verdicts_follow_their_thresholds(found):
    plenty = replace(
        found, totals=found.totals | {"rows": 50_000, "different_rows": 49_000, "tokens_out": 50_000_000, "days": 2}
    )
    assert [verdict.answer for verdict in verdicts_of(plenty)] == ["yes", "yes"]
    slow = replace(plenty, totals=plenty.totals | {"days": 300})
    assert [verdict.answer for verdict in verdicts_of(slow)] == ["possible", "possible"]
    repeating = replace(plenty, totals=plenty.totals | {"different_rows": 20_000})
    assert [verdict.answer for verdict in verdicts_of(repeating)] == ["yes", "not yet"]
    scattered = [{"shape": f"s{n}", "rows": 1, "share": 1 / 1000, "acceptance": None} for n in range(1000)]
    assert "prompt shapes" in verdicts_of(replace(plenty, shapes=scattered))[1].sentence
    assert "Switch that on first" in verdicts_of(replace(plenty, acceptance={"K3": 2.5}))[0].sentence
    assert "next to nothing" in verdicts_of(replace(plenty, acceptance={"K3": 1.02}))[0].sentence
    assert [verdict.answer for verdict in found.verdicts] == ["not yet", "not yet"]


def test_the_page_holds_every_table_and_nothing_from_outside_or_from_users(found, tmp_path):
    write_page(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert all(section.title in page for section in sections(found))
    assert "<svg" in page and "src=" not in page and "http" not in page.replace(str(tmp_path), "")
    assert "@example" not in page


def test_days_without_traffic_are_gaps_and_long_spans_are_summed(found):
    from datetime import date, timedelta

    first = date(2026, 1, 1)
    bars = day_bars(replace(found, days=[{"day": first, "rows": 4}, {"day": first + timedelta(days=2), "rows": 8}]))
    assert [bar["height"] for bar in bars["bars"]] == [60.0, 0, 120.0]
    year = day_bars(replace(found, days=[{"day": first + timedelta(days=n), "rows": 1} for n in range(0, 720, 2)]))
    assert len(year["bars"]) <= 120 and year["step"] == 6


@pytest.mark.parametrize("number, text", [(999, "999"), (9999, "9,999"), (43_491, "43.5k"), (1_234_567, "1.23M"), (2e9, "2B")])
def test_short_numbers(number, text):
    assert short(number) == text


def test_only_feedback_is_said(tmp_path):
    found = inspect([write(tmp_path / "thumbs.jsonl", [{"response_id": "r", "name": "thumbs", "value": "up"}])])
    assert [verdict.answer for verdict in found.verdicts] == ["no rows", "no rows"]
    assert [section.title for section in sections(found)] == ["Files", "Feedback"]


def test_what_cannot_be_looked_at_is_said_in_a_sentence(tmp_path):
    with pytest.raises(SourceError, match=r"^there is no file or directory .*missing"):
        inspect([str(tmp_path / "missing")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"^no log objects under"):
        inspect([str(tmp_path / "empty")])
    with pytest.raises(InspectError, match=r"of a known log format; .*strange.jsonl:0: unknown_format"):
        inspect([write(tmp_path / "strange.jsonl", [{"a": 1}])])
    with pytest.raises(InspectError, match="unknown log format 'nonsense'"):
        inspect([str(tmp_path)], format="nonsense")
    (tmp_path / "hollow").mkdir()
    (tmp_path / "hollow" / "zero.jsonl").write_text("")
    with pytest.raises(InspectError, match=r"^1 object under .*hollow holds no record at all$"):
        inspect([str(tmp_path / "hollow")])


def test_no_temporary_lake_is_left(traffic, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    inspect([str(traffic / "feedback")])
    with pytest.raises(InspectError):
        inspect([write(tmp_path / "strange.jsonl", [{"a": 1}])])
    assert [path.name for path in tmp_path.iterdir()] == ["strange.jsonl"]


@pytest.mark.slow
def test_logs_on_s3_are_looked_at_where_they_lie_and_a_bucket_that_is_not_there_is_said(monkeypatch):
    pytest.importorskip("moto", reason="moto is not installed: no local S3 server")
    from benchmarks.s3_server import s3_server

    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.bucket("looked-at")
        body = "".join(json.dumps(pair(n, f"ask {n}", "an answer of some words")) + "\n" for n in range(40))
        server.put("looked-at", "logs/part.jsonl", body.encode())
        found = inspect(["s3://looked-at/logs/"])
        assert (found.totals["rows"], found.formats[0]["format"]) == (40, "openai_pairs")
        with pytest.raises(SourceError, match="nowhere"):
            inspect(["s3://nowhere/logs/"])


@pytest.mark.slow
def test_what_was_not_measured_is_not_said(tmp_path):
    tokens = [{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}]
    found = inspect([write(tmp_path / "tokens.jsonl", tokens)])
    assert found.acceptance.get("K3") is None
    assert "long enough to measure" in found.verdicts[0].sentence and "n-gram:" not in found.verdicts[0].sentence
    assert "An n-gram drafter" not in [section.title for section in sections(found)]


@pytest.mark.slow
def test_requests_without_an_answer_and_without_a_time_are_said(tmp_path):
    prompts = [
        {"messages": [{"role": "user", "content": f"what is {n} and two"}], "reference_answer": str(n)} for n in range(3)
    ]
    found = inspect([write(tmp_path / "rft.jsonl", prompts)], format="messages")
    health = next(check for check in found.verdicts[0].checks if "hold no answer" in check.name)
    assert not health.passed and health.value == "100%"
    assert any("100.0% of the requests seem to have no time" in section.note for section in sections(found))
    timed = inspect([write(tmp_path / "pairs.jsonl", [pair(1, "ask", "an answer of some words")])])
    assert not any("no time" in section.note for section in sections(timed))


def test_objects_that_cannot_be_read_are_named_with_the_reason(tmp_path, monkeypatch):
    import resources.sources.ledger as module

    write(tmp_path / "a.jsonl", [pair(1, "ask", "an answer of some words")])
    write(tmp_path / "shut.jsonl", [pair(2, "ask again", "an answer of some words")])
    whole = module.open_object

    def opened(item):
        if item.uri.endswith("shut.jsonl"):
            raise PermissionError(13, "Permission denied", item.uri)
        return whole(item)

    monkeypatch.setattr(module, "open_object", opened)
    files = next(section for section in sections(inspect([str(tmp_path)])) if section.title == "Files")
    assert files.note == f"1 cannot be read, {tmp_path}/shut.jsonl first: Permission denied."
    with pytest.raises(InspectError, match=r"the one object under .* cannot be read; .*shut.jsonl: Permission denied$"):
        inspect([str(tmp_path / "shut.jsonl")])


def test_text_from_logs_is_text_in_the_terminal_and_on_the_page(tmp_path):
    nasty, shown = "\x1b[31m\x9b\u202e:100:[red]x", r"\x1b[31m\x9b\u202e:100:[red]x"
    logs = tmp_path / "logs"
    logs.mkdir()
    record = pair(1, f"{nasty} hello", nasty, workload_id=nasty, client_id=nasty)
    record["request"]["model"] = record["response"]["model"] = nasty
    (logs / f"{nasty}.jsonl").write_text(json.dumps(record) + "\n{" + nasty + "\n")
    found = inspect([str(logs)])
    console = PlainConsole(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    print_inspection(found, console)
    write_page(found, tmp_path / "page.html")
    for said in (console.file.getvalue(), (tmp_path / "page.html").read_text()):
        assert not {"\x1b", "\x9b", "\u202e"} & set(said)
        assert said.count(f"{shown}\n") + said.count(f"{shown} ") + said.count(f"{shown}<") >= 3  # workload, client, model
        assert f"{logs}/{shown}.jsonl" in said


@pytest.mark.parametrize("width", [80, 120])
def test_sentences_are_folded_between_words_on_a_terminal(tmp_path, width):
    records = [pair(n, f"what is {n}", f"{n} is {n}", stars=1 + n % 5, region="eu") for n in range(12)]
    write(tmp_path / "a.jsonl", records)
    found = inspect([str(tmp_path)])
    console = PlainConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_inspection(found, console)
    lines = console.file.getvalue().splitlines()
    assert [line for line in lines if len(line) > width and str(tmp_path) not in line] == []
    whole = PlainConsole(file=io.StringIO(), width=width, color_system=None)
    print_inspection(found, whole)
    assert "Each value of stars above 0 counts as a thumb up" in whole.file.getvalue()
    assert whole.file.getvalue().endswith(
        f"\nnext: millrace init {tmp_path} --base-model MODEL writes a recipe for these logs\n"
    )


def test_the_tenth_uri_is_not_the_first():
    uris = [f"logs/{number}" for number in range(1, 13)]
    assert [_uri_of(name, uris) for name in ("input-1", "input-1-10", "input-10", "input-12-1")] == [
        "logs/1",
        "logs/1",
        "logs/10",
        "logs/12",
    ]
