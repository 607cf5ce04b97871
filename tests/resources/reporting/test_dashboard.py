"""`millrace report WORKLOAD`: one page without network that shows what there is, and says in words what there is not."""

import json
import os
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pipelines.commands import ask  # noqa: F401 - adds the command
from pipelines.terminal.shared_options import app
from resources.catalog.build import rebuild
from resources.catalog.catalog import CatalogError
from resources.endpoints.endpoints import Aliases, Endpoint
from resources.lake.lake import LakeLayout
from resources.lake.sql_files import attach_slice, workbench
from resources.lake.tables import SCHEMAS, Tables
from resources.launching.run_history import RunRecord
from resources.releases.release import ReleaseRef
from resources.releasing.charts import columns, lines, nice_bounds, nice_top, short_number
from resources.reporting import dashboard_facts
from resources.reporting.dashboard import tiles, write_dashboard
from resources.reporting.dashboard_facts import Facts, facts_of
from resources.reporting.data_report import (
    MOST_CHARACTERS,
    PEOPLE,
    column_statistics,
    files_relation,
    rows_without_texts,
    write_data_report,
)
from tests.resources.reporting.busy_lake import DAYS, FIRST, add, fill


@pytest.fixture(scope="module")
def busy(tmp_path_factory, make_release):
    """A filled lake, its releases, and its page."""
    home = tmp_path_factory.mktemp("busy")
    lake = LakeLayout.open(home / "lake")
    releases = fill(lake, make_release)
    page = write_dashboard(lake, "tutor", home / "tutor.html", datetime(2026, 12, 1, tzinfo=UTC)).read_text()
    return lake, releases, page


def section(page, name):
    return page.partition(f'<section id="{name}">')[2].partition("</section>")[0]


def test_the_page_needs_no_network_and_holds_no_words_of_users(busy):
    _, _, page = busy
    assert not re.search(r"(?:src|href)=[\"'](?!#)|url\(|@import|<script|https?://", page)
    assert "said by a user" not in page and "alert(" not in page and "u3" not in re.sub(r"<[^>]*>", " ", page).split()
    assert page.count("<figure>") == page.count("</figure>") >= 12 and "prefers-color-scheme: dark" in page


def test_rated_answers_of_millrace_chat_are_no_traffic(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    row = {"dt": FIRST, "ts": datetime(2026, 6, 1, tzinfo=UTC), "status": "success"}
    sources = ("gateway", None, "millrace_chat")
    add(Tables(lake), "interactions", [{**row, "interaction_id": str(source), "source": source} for source in sources])
    assert [day["requests"] for day in facts_of(lake, "tutor", datetime(2026, 6, 2, tzinfo=UTC)).traffic] == [2]


def test_each_section_shows_the_numbers_of_its_tables(busy):
    _, releases, page = busy
    first, second, third = (release.name for release in releases)
    # answered, failed, tokens of two kinds, users
    assert section(page, "traffic").count("<rect") == 2 * DAYS + DAYS // 3 + 1 + 2 * DAYS
    assert "<title>2026-06-01: 1 failed</title>" in page and "<title>2026-06-01: 15 answered</title>" in page
    shown = section(page, "releases")
    assert re.findall(r'data-column="release"><code>(\w+)</code></td><td data-column="made">', shown) == [third, second, first]
    assert f"{second}: " in shown and ">rolled back</td>" in shown and "acceptance fell below its interval" in shown
    assert re.search(rf'{third}</code>.*?data-column="stands">withdrawn', shown)
    assert '<span class="pill champion">champion</span>' in shown
    assert "2.5" in re.search(rf'{first}.*?data-column="served">([^<]*)<', shown)[1]
    assert section(page, "drift").count('class="h3"') == 4 and "novelty, 2026-07-10: 0.1" in page
    assert "mean points of 10" in section(page, "quality") and "tokens/s, as servers report" in section(page, "latency")


def test_feedback_is_bad_below_the_least_good_value_of_its_name(tmp_path, monkeypatch):
    lake = LakeLayout.open(tmp_path / "lake")
    values = {"stars": (2.0, 4.0), "thumb": (-1.0, 0.0), "toxicity": (1.0, 0.0), "comment": (None,)}
    given = [{"dt": FIRST, "name": name, "value": value} for name, of in values.items() for value in of]
    add(Tables(lake), "feedback", [{**row, "request_id": f"r{place}"} for place, row in enumerate(given)])
    curated = SimpleNamespace(config={"feedback": {"least": {"stars": 4.0}}}, metrics={})
    for manifests, bad in (({}, 2), ({"curated_interactions": curated}, 3)):
        monkeypatch.setattr(dashboard_facts, "current_manifests", lambda *_, found=manifests: found)
        facts = dashboard_facts.facts_of(lake, "tutor", datetime(2026, 12, 1, tzinfo=UTC))
        assert facts.feedback == [{"dt": FIRST, "rated": 6, "bad": bad}]


def test_the_tiles_name_what_somebody_should_look_at(busy):
    _, releases, page = busy
    found = re.findall(r'<div class="tile (\w*)"><span>([^<]+)</span><b>([^<]+)</b>', page)
    tiles = {label: (value, look) for look, label, value in found}
    assert tiles["Champion"] == (releases[1].name[:6], "") and tiles["Drift"] == ("4 days", "look")
    assert tiles["Candidate"] == ("none", "")


def test_without_a_comparison_there_is_no_word_on_drift():
    def drift(*rows):
        facts = Facts("tutor", datetime(2026, 7, 11, tzinfo=UTC), Aliases(workload="tutor"), drift=list(rows))
        return next((tile["value"], tile["about"]) for tile in tiles(facts) if tile["label"] == "Drift")

    row = {"dt": date(2026, 7, 1), "alarm": False, "compared": False}
    assert drift() == drift(row) == ("\u2013", "no day was compared yet")
    assert drift(row, row | {"compared": True}) == ("no alarm", "in 1 day compared")


def test_a_run_costs_what_its_steps_and_the_time_around_them_took(tmp_path, monkeypatch):
    at, part = datetime(2026, 7, 11, tzinfo=UTC), {"workload": "tutor", "submitted": "s"}
    seen = [
        RunRecord("b", "train", "SUCCESS", at + timedelta(seconds=50), at + timedelta(seconds=170), **part),
        RunRecord("a", "logs", "SUCCESS", at, at + timedelta(seconds=40), **part),
        RunRecord("x", "train", "SUCCESS", at, at + timedelta(seconds=40), workload="other"),
        RunRecord("k", "train", "STARTED", at, None, process="999999@5.00", workload="tutor"),
    ]
    steps = {"a": {"interactions": 20.0, "cleaned_interactions": 10.0}}
    steps["b"] = {"sft_model": 60.0, "sft_model_learnt_nothing_held_out": 2.0}
    monkeypatch.setattr(dashboard_facts, "runs", lambda lake: seen)
    monkeypatch.setattr(dashboard_facts, "seconds_of_steps", lambda lake, run: steps.get(run, {}))
    [run] = facts_of(LakeLayout.open(tmp_path / "lake"), "tutor", at + timedelta(days=1)).runs
    assert run.seconds == {"traffic": 30.0, "models": 60.0, "around steps": 70.0} and run.total_s == 160  # 40 s and 120 s


def test_a_candidate_that_missed_a_gate_says_so(tmp_path, make_release):
    lake = LakeLayout.open(tmp_path / "lake")
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(make_release(lake, 1, recovery=0.5)))
    page = write_dashboard(lake, "tutor", tmp_path / "t.html").read_text()
    assert "missed 1 gate" in page and "gate recovery: 0.5" in section(page, "releases")
    assert "No release is served yet: none is offered for approval" in page
    assert "<span>Not offered</span>" in page and ">candidate<" not in page and "<span>Candidate</span>" not in page


def test_an_empty_lake_says_in_words_what_there_is_not(tmp_path):
    page = write_dashboard(LakeLayout.open(tmp_path / "lake"), "tutor", tmp_path / "t.html").read_text()
    assert page.count('class="empty"') == 10 and "<svg" not in page and "millrace run RECIPE makes one" in page


def test_what_cannot_be_read_is_said_and_the_rest_is_shown(busy, tmp_path, make_release):
    lake = LakeLayout.open(tmp_path / "lake")
    (release,) = [make_release(lake, 1)]
    (release / "release.json").write_text("{")
    (lake.root / "endpoints").mkdir(exist_ok=True)
    (lake.root / "endpoints" / "tutor.json").write_text("[")
    page = write_dashboard(lake, "tutor", tmp_path / "t.html").read_text()
    assert "cannot be read as aliases" in page and "holds no readable release.json" in page


def test_the_command_takes_a_workload_or_its_path_and_names_those_there_are(busy, tmp_path, monkeypatch):
    lake, _, _ = busy
    monkeypatch.chdir(tmp_path)

    def call(*words):
        return CliRunner().invoke(app, ["report", *words])

    for words in (["tutor", "--lake", str(lake.root)], [f"{lake.root}/tutor"], ["--lake", str(lake.root), "--out", "one.html"]):
        assert call(*words).exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.html", "tutor.html"]
    refused = call("shop", "--lake", str(lake.root))
    assert isinstance(refused.exception, CatalogError) and "there is no workload 'shop'" in str(refused.exception)
    assert "give data, or one of tutor" in str(refused.exception)


def test_axes_have_round_numbers_and_hold_every_value():
    assert [nice_top(value) for value in (0, 0.3, 1, 7, 12, 2100)] == [1, 0.5, 1, 10, 20, 2500]
    for least, most in ((0.9912, 0.9941), (3, 3), (-2, 5), (0.5, 0.50001)):
        low, top = nice_bounds(least, most)
        assert low <= least + 1e-9 and top >= most - 1e-9 and top > low
    assert [short_number(value) for value in (0.25, 999, 12_345, 3e6, 2e9)] == ["0.25", "999", "12.3k", "3M", "2G"]


def test_charts_of_one_day_and_of_nothing_are_drawn():
    day = date(2026, 6, 1)
    assert "06-01" in columns("One", "a day", [day], {"a": [0], "b": [3]})
    assert lines("One", "by day", {"a": [(day, 2.0)]}, from_zero=False).count("<circle") == 1
    assert "<svg" in columns("None", "a day", [], {"a": []})
    assert "&lt;b&gt;" in columns("<b>", "a day", [day], {"a": [1]})


def test_the_styles_and_the_template_are_shipped():
    from resources.reporting.dashboard import TEMPLATES

    assert {path.name for path in Path(TEMPLATES).glob("dashboard*")} == {"dashboard.html.j2", "dashboard.css.j2"}


NASTY = "<script>alert(1)</script>\u202e" + "x" * 200


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    lake = LakeLayout.open(tmp_path_factory.mktemp("report") / "lake")
    row = {"workload": "tutor", "request_id": NASTY, "messages": json.dumps([{"content": NASTY}])}
    rows = [row | {"dt": date(2026, 6, 1 + n % 2), "interaction_id": f"i{n}", "prompt_tokens": 10 * n} for n in range(4)]
    rows = [row | {"status": "success" if row["prompt_tokens"] else "error"} for row in rows]
    rows.append({**rows[0], "interaction_id": "chat", "source": "millrace_chat"})  # no traffic of the product
    Tables(lake).append("interactions", pa.Table.from_pylist(rows, schema=SCHEMAS["interactions"]))
    rebuild(lake)
    return lake


def test_the_page_shows_statistics_and_escapes_logged_text(lake, tmp_path):
    write_data_report(lake, tmp_path / "data.html")
    page = (tmp_path / "data.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page and "\u202e" not in page and "x" * MOST_CHARACTERS not in page
    assert not re.search(r"(?:src|href)=[\"'](?!#)", page) and "http://" not in page and "https://" not in page
    [tokens] = re.findall(r'<tr><td data-column="column">prompt_tokens</td>(.*?)</tr>', page)
    assert re.findall(r">([^<]*)</td>", tokens) == ["BIGINT", "0.0", "4", "12", "0", "30"]
    [day] = re.findall(r'<tr><td data-column="workload">tutor</td>(<td data-column="day">2026-06-01</td>.*)</tr>', page)
    # a phone shows the names
    assert re.findall(r'data-column="(\w+)"[^>]*>([^<]+)</td>', day)[:2] == [("day", "2026-06-01"), ("requests", "2")]


def test_without_previews_no_text_of_a_row_is_on_the_page(lake, tmp_path):
    write_data_report(lake, tmp_path / "data.html", previews=False)
    page = (tmp_path / "data.html").read_text()
    assert "alert(1)" not in page and "xxxx" not in page and ">i0<" not in page and ">prompt_tokens</td>" in page


def test_misuse_is_one_sentence_and_writes_nothing(lake, tmp_path):
    for words, said in (
        (["data", "--out", lake.root / "d.html"], "lies in the lake"),
        (["nothing"], "give data, or one of tutor"),
        (["data", "--out", tmp_path / "no" / "d.html"], "existing folder"),
    ):
        done = CliRunner().invoke(app, ["report", *map(str, words), "--lake", str(lake.root)])
        assert isinstance(done.exception, CatalogError) and said in str(done.exception)
    assert list(tmp_path.iterdir()) == [] and not (lake.root / "d.html").exists()


def test_a_device_is_not_replaced_by_the_page(lake, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done = CliRunner().invoke(app, ["report", "data", "--out", str(tmp_path / "pipe"), "--lake", str(lake.root)])
    assert "give a file" in str(done.exception) and (tmp_path / "pipe").is_fifo()


def test_statistics_of_files_show_no_text_and_count_over_all_of_them(tmp_path):
    import pyarrow.parquet as pq

    for name, first in (("train", 0), ("test", 10)):
        table = pa.table({"messages": [NASTY, "b"], "weight": [first, None], "said": [[NASTY], ["b"]]})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    relation = files_relation([tmp_path / "train.parquet", tmp_path / "test.parquet"])
    with workbench() as connection:
        found = {row["name"]: row for row in column_statistics(connection, relation, with_texts=False)[1]}
    assert list(found["weight"]) == ["name", "type", "nulls", "distinct", "least", "most", "mean"]
    assert list(found["weight"].values()) == ["weight", "BIGINT", "50.0", "2", "0", "10", "5"]
    assert {found[name][key] for name in ("messages", "said") for key in ("least", "most")} == {""}


def test_a_preview_of_rows_shows_names_numbers_and_sizes_and_nothing_that_was_said(lake):
    with workbench() as connection:
        attach_slice(connection, Tables(lake), "interactions", "tutor")
        found = rows_without_texts(connection, "from interactions where source is null order by interaction_id")
        shown = {"workload": "tutor", "dt": "2026-06-01", "messages": "248 characters", "prompt_tokens": "0", "status": "error"}
        assert {row["column"]: row["row 1"] for row in found} == shown
        assert found[0].keys() == {"column", "row 1", "row 2", "row 3"} and NASTY[:20] not in str(found)
        row = {"workload": "tutor", "dt": date(2026, 6, 1), "name": "thumbs", "value": 1.0}
        row |= {"source": "ann@example.org", "session_id": "s"}
        connection.register("told", pa.Table.from_pylist([row], schema=SCHEMAS["feedback"]))
        found = rows_without_texts(connection, "from told", PEOPLE["feedback"])
        shown = {"workload": "tutor", "dt": "2026-06-01", "name": "thumbs", "value": "1"}
        assert found == [{"column": name, "row 1": value} for name, value in shown.items()]
