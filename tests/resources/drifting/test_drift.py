"""From cleaned rows to the table `drift` and its page: what alarms, what is compared again, what is said in words."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from cleaned_rows import FIRST, cleaned, days_of_rows, generator, store

from resources.curating import FeedbackScale
from resources.curating.judge_endpoint import JudgeSettings
from resources.drifting import acceptance_chart as cusum
from resources.drifting.drift import ServedRelease, compare_traffic, served_release
from resources.drifting.page import write_drift_page
from resources.drifting.session_counts import DriftInputs
from resources.drifting.settings import DriftSettings
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables

SETTINGS = DriftSettings(reference_days=4, windows=[1], false_alarms_per_1000_days=10)
END = FIRST + timedelta(4)
"""The first day after the reference window of most tests."""
NOW = datetime(2026, 6, 20, tzinfo=UTC)


def changed(rng):
    """Four sessions of ten ask for something else, in another language, of a tool, and are refused."""
    if rng.random() < 0.6:
        return {}
    call = {"tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": "{}"}}]}
    return {
        "prompt": "write a poem about the sea and its waves tonight",
        "shape": "write#2",
        "language": "de",
        "status": "error",
        "completion": json.dumps({"role": "assistant", "content": "I'm sorry, but I can't help with that.", **call}),
    }


def by_test(report):
    return {row["test"]: row for row in report.rows}


def test_a_change_alarms_in_every_test_that_sees_it_and_a_quiet_day_in_none(tables):
    after = days_of_rows(1, generator(2), of=changed, first=END + timedelta(1))
    store(tables, "cleaned_interactions", [*days_of_rows(5, generator(1)), *after])
    report = compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW)
    assert report.days == [END, END + timedelta(1)] and report.notes == []
    assert not any(row["alarm"] for row in report.rows if row["dt"] == END)
    assert {row["test"] for row in report.alarms} == {
        "prompt_shapes",
        "novelty",
        "language",
        "tools",
        "errors",
        "refusals",
        "prompt_length",
    }
    row = next(row for row in report.alarms if row["test"] == "errors")
    assert row["value"] > 0.2 and row["p"] <= row["level"] < 0.01 and row["sessions"] == 40 and row["reference_sessions"] == 120
    assert "nothing to count" in by_test(report)["quality"]["problem"] and by_test(report)["bad_feedback"]["value"] is None


def test_only_new_days_and_days_with_other_rows_are_compared(tables):
    rows = days_of_rows(6, generator(3))
    store(tables, "cleaned_interactions", rows)
    first = compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW)
    assert first.days == [END, END + timedelta(1)]
    assert compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW).rows == []
    store(tables, "cleaned_interactions", [*(row for row in rows if row["dt"] == END), cleaned(10**9, END, "late")])
    again = compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW)
    assert again.days == [END] and by_test(again)["errors"]["sessions"] == 41
    kept = tables.open("drift").to_pyarrow_table().to_pylist()
    assert len(kept) == len(first.rows)
    assert {row["rows"] for row in kept if row["dt"] == END} == {by_test(again)["errors"]["rows"]}
    other = SETTINGS.model_copy(update={"false_alarms_per_1000_days": 9.0})
    assert compare_traffic(tables, "tutor", other, DriftInputs(), now=NOW).days == first.days


def test_a_day_with_as_many_rows_is_compared_again_when_they_or_their_feedback_changed(tables):
    rows = days_of_rows(6, generator(3), sessions=25)
    store(tables, "cleaned_interactions", rows)
    assert compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW).days == [END, END + timedelta(1)]
    store(tables, "cleaned_interactions", [row | {"status": "error"} for row in rows if row["dt"] == END])
    cleaned_again = compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW)
    assert cleaned_again.days == [END] and by_test(cleaned_again)["errors"]["alarm"]
    blank = dict.fromkeys(SCHEMAS["feedback"].names)
    store(
        tables,
        "feedback",
        [
            blank
            | {
                "workload": "tutor",
                "dt": row["dt"],
                "interaction_id": row["interaction_id"],
                "name": "stars",
                "value": 5.0,
                "ts": row["ts"],
            }
            for row in rows
            if row["dt"] == END + timedelta(1)
        ],
    )
    late = compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW)
    assert late.days == [END + timedelta(1)] and by_test(late)["feedback_given"]["alarm"]
    store(tables, "cleaned_interactions", [row for row in rows if row["dt"] == FIRST])  # a day of the reference alone
    assert compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW).rows == []


def test_the_same_traffic_gives_the_same_values(tables, tmp_path):
    rows = days_of_rows(5, generator(4))
    found = []
    for place in ("one", "two"):
        tables = Tables(LakeLayout.open(tmp_path / place))
        store(tables, "cleaned_interactions", rows)
        found.append(
            [
                {**row, "ts": None, "files": None}
                for row in compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW).rows
            ]
        )
    assert found[0] == found[1] and found[0]


def test_feedback_of_the_own_day_and_a_judge_s_scores_are_compared(tables):
    rows = days_of_rows(5, generator(5))
    store(tables, "cleaned_interactions", rows)
    about = {name: dict.fromkeys(SCHEMAS[name].names) for name in ("feedback", "judgements")}
    judge = JudgeSettings(base_url="http://localhost:1/v1", model="big")
    thumbs, scores = [], []
    for row in rows:
        shared = {column: row[column] for column in ("workload", "dt", "interaction_id", "ts")}
        bad = row["dt"] == END
        thumbs.append(about["feedback"] | shared | {"name": "stars", "value": 1.0 if bad else 5.0})
        thumbs.append(about["feedback"] | shared | {"name": "stars", "value": 1.0, "dt": row["dt"] + timedelta(30)})  # too late
        scores.append(
            about["judgements"]
            | shared
            | {
                "content_sha256": row["content_sha256"],
                "name": "quality",
                "model": "big",
                "prompt_sha256": judge.prompt_sha256,
                "score": 2.0 if bad else 8.0 + (len(scores) % 2),
            }
        )
    store(tables, "feedback", thumbs)
    store(tables, "judgements", scores)
    found = by_test(compare_traffic(tables, "tutor", SETTINGS, DriftInputs(judge, {"stars": FeedbackScale(1, 3.0)}), now=NOW))
    assert found["bad_feedback"]["alarm"] and found["bad_feedback"]["value"] == pytest.approx(1)
    assert found["quality"]["alarm"] and found["quality"]["value"] > 0.6
    assert found["feedback_given"]["value"] == 0 and not found["errors"]["alarm"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "no day of traffic that is over"),
        (days_of_rows(3, generator(6), sessions=2), "the first 4 days of traffic (2026-06-01 on), of which 3 days are over"),
    ],
)
def test_without_a_full_window_nothing_is_compared_and_the_report_says_so(tables, rows, said):
    if rows:
        store(tables, "cleaned_interactions", rows)
    report = compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=datetime(2026, 6, 4, 9, tzinfo=UTC))
    assert said in report.notes[0] and report.rows == [] and tables.open("drift") is None
    assert said in write_drift_page(tables, "tutor", report, SETTINGS).read_text()


def test_a_day_with_one_session_and_one_of_tomorrow_are_named(tables):
    store(
        tables,
        "cleaned_interactions",
        [*days_of_rows(4, generator(7), sessions=25), cleaned(5, END, "alone"), cleaned(6, NOW.date() + timedelta(2), "ahead")],
    )
    report = compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW)
    assert report.days == [END]
    assert {row["problem"] for row in report.rows} == {"the window has 1 session, fewer than drift.least_sessions (20)"}
    assert report.notes == [
        "1 day of the logs, up to 2026-06-22, is after today, 2026-06-20: a clock of the logs or of this machine "
        "is wrong, and these rows are not compared yet"
    ]


def test_rows_that_cannot_be_parsed_and_requests_without_a_session_are_counted(tables):
    odd = [cleaned(place, END, None, prompt=f"question {place % 30}") for place in range(60)]
    odd[0] |= {"messages": "{", "completion": "no json", "status": "unreadable", "session_id": None, "prompt_shape": None}
    odd[1] |= {
        "messages": json.dumps([{"role": "user", "content": [{"type": "text", "text": "look at this"}]}]),
        "completion": None,
    }
    store(tables, "cleaned_interactions", [*days_of_rows(4, generator(8), sessions=25), *odd])
    report = compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW)
    assert by_test(report)["errors"]["sessions"] == 32  # 30 first messages, one list of parts, one unreadable row


def metrics(hour, **changes):
    start = datetime(2026, 6, 1, tzinfo=UTC) + timedelta(hours=hour)
    return (
        dict.fromkeys(SCHEMAS["serving_metrics"].names)
        | {
            "workload": "tutor",
            "release": "r1",
            "window_start": start,
            "window_end": start + timedelta(minutes=30),
            "drafts": 500,
            "draft_tokens": 1_500,
            "accepted_tokens": 750 + hour % 7,
        }
        | changes
    )


def test_acceptance_is_charted_and_windows_that_cannot_be_true_are_named(tables):
    rows = [metrics(hour) if hour < 24 * 10 else metrics(hour, accepted_tokens=400) for hour in range(24 * 12)]
    rows.append(metrics(5, window_end=datetime(2026, 6, 1, tzinfo=UTC)))
    rows.append(metrics(6, accepted_tokens=9_999))
    tables.append("serving_metrics", pa.Table.from_pylist(rows, schema=SCHEMAS["serving_metrics"]))
    settings = SETTINGS.model_copy(update={"reference_days": 8})
    report = compare_traffic(tables, "tutor", settings, DriftInputs(), now=NOW)
    assert {row["test"] for row in report.rows} == {"acceptance"}
    assert [row["dt"] for row in report.rows if row["alarm"]] == [FIRST + timedelta(10), FIRST + timedelta(11)]
    assert "1 window of serving_metrics with an end before the beginning is left out" in report.notes[0]
    assert "more accepted than drafted tokens is left out" in report.notes[1]
    assert compare_traffic(tables, "tutor", settings, DriftInputs(), now=NOW).rows == []


def test_where_nobody_reads_metrics_captured_answers_are_charted(tables, monkeypatch):
    monkeypatch.setattr(cusum, "SERIES", 10)
    rows = []
    for hour in range(24 * 12):
        ts = datetime(2026, 6, 1, tzinfo=UTC) + timedelta(hours=hour, minutes=5)
        rows.append(
            dict.fromkeys(SCHEMAS["interactions"].names)
            | {
                "workload": "tutor",
                "dt": ts.date(),
                "ts": ts,
                "interaction_id": f"i{hour}",
                "release": "aaa",
                "drafts": 500,
                "draft_tokens": 1_500,
                "accepted_tokens": 750 + hour % 7 if hour < 24 * 10 else 400,
            }
        )
    tables.append("interactions", pa.Table.from_pylist(rows, schema=SCHEMAS["interactions"]))
    settings = SETTINGS.model_copy(update={"reference_days": 8})
    report = compare_traffic(tables, "tutor", settings, DriftInputs(), ServedRelease("aaa"), now=NOW)
    assert [row["dt"] for row in report.rows if row["alarm"]] == [FIRST + timedelta(10), FIRST + timedelta(11)]
    assert not compare_traffic(tables, "tutor", settings, DriftInputs(), ServedRelease("bbb"), now=NOW).rows


def test_rated_answers_of_millrace_chat_are_no_traffic_that_drifts(tables):
    rows = days_of_rows(12, generator(4))
    chats = [cleaned(10**8 + place, END, f"chat {place}", shape="chat#1", source="millrace_chat") for place in range(60)]
    found = []
    for more in ([], chats):
        store(tables, "cleaned_interactions", [*rows, *more])
        shapes = by_test(compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW))["prompt_shapes"]
        found.append((shapes["value"], shapes["sessions"], shapes["alarm"]))
    assert found[0] == found[1]


def test_the_page_shows_alarms_and_plots_and_no_text_of_users(tables):
    after = days_of_rows(1, generator(10), of=changed, first=END)
    store(tables, "cleaned_interactions", [*days_of_rows(4, generator(9)), *after])
    report = compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW)
    page = write_drift_page(tables, "tutor", report, SETTINGS).read_text()
    assert "first full window of the logs, since no release is served" in page and 'class="alarm">novelty' in page
    assert page.count("data:image/png;base64,") >= 6 and "poem" not in page and "write#2" not in page


def test_without_an_endpoint_there_is_no_release_and_a_damaged_one_is_named(tables, tmp_path):
    assert served_release(tables.lake, "tutor") == ServedRelease()
    (tables.lake.root / "endpoints").mkdir()
    tables.lake.endpoint("tutor").write_text("{")
    problem = served_release(tables.lake, "tutor").problem
    assert problem.startswith("the served release cannot be read")
    report = compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), served_release(tables.lake, "tutor"), now=NOW)
    assert report.notes[0] == problem
