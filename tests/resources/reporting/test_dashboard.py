"""`millrace report WORKLOAD`: one page without network that shows what there is, and says in words what there is not."""

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from pipelines.commands import ask  # noqa: F401 - adds the command
from pipelines.terminal.shared_options import app
from resources.catalog.catalog import CatalogError
from resources.endpoints.endpoints import Aliases, Endpoint
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.launching.run_history import RunRecord
from resources.releases.release import ReleaseRef
from resources.releasing.charts import columns, lines, nice_bounds, nice_top, short_number
from resources.reporting import dashboard_facts
from resources.reporting.dashboard import tiles, write_dashboard
from resources.reporting.dashboard_facts import Facts, facts_of
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
    add(
        Tables(lake),
        "interactions",
        [
            {
                "dt": FIRST,
                "interaction_id": str(source),
                "ts": datetime(2026, 6, 1, tzinfo=UTC),
                "status": "success",
                "source": source,
            }
            for source in ("gateway", None, "millrace_chat")
        ],
    )
    assert [day["requests"] for day in facts_of(lake, "tutor", datetime(2026, 6, 2, tzinfo=UTC)).traffic] == [2]


def test_each_section_shows_the_numbers_of_its_tables(busy):
    _, releases, page = busy
    first, second, third = (release.name for release in releases)
    assert (
        section(page, "traffic").count("<rect") == 2 * DAYS + DAYS // 3 + 1 + 2 * DAYS
    )  # answered, failed, tokens of two kinds, users
    assert "<title>2026-06-01: 1 failed</title>" in page and "<title>2026-06-01: 15 answered</title>" in page
    shown = section(page, "releases")
    assert re.findall(r'data-column="release"><code>(\w+)</code></td><td data-column="made">', shown) == [third, second, first]
    assert f"{second}: " in shown and ">rolled back</td>" in shown and "acceptance fell below its interval" in shown
    assert (
        re.search(rf'{third}</code>.*?data-column="stands">withdrawn', shown)
        and '<span class="pill champion">champion</span>' in shown
    )
    assert "2.5" in re.search(rf'{first}.*?data-column="served">([^<]*)<', shown)[1]
    assert section(page, "drift").count('class="h3"') == 4 and "novelty, 2026-07-10: 0.1" in page
    assert "mean points of 10" in section(page, "quality") and "tokens/s, as servers report" in section(page, "latency")


def test_feedback_is_bad_below_the_least_good_value_of_its_name(tmp_path, monkeypatch):
    lake = LakeLayout.open(tmp_path / "lake")
    add(
        Tables(lake),
        "feedback",
        [
            {"dt": FIRST, "name": name, "value": value, "request_id": f"r{place}"}
            for place, (name, value) in enumerate(
                (
                    ("stars", 2.0),
                    ("stars", 4.0),
                    ("thumb", -1.0),
                    ("thumb", 0.0),
                    ("toxicity", 1.0),
                    ("toxicity", 0.0),
                    ("comment", None),
                )
            )
        ],
    )
    curated = SimpleNamespace(config={"feedback": {"least": {"stars": 4.0}}}, metrics={})
    for manifests, bad in (({}, 2), ({"curated_interactions": curated}, 3)):
        monkeypatch.setattr(dashboard_facts, "current_manifests", lambda *_, found=manifests: found)
        assert dashboard_facts.facts_of(lake, "tutor", datetime(2026, 12, 1, tzinfo=UTC)).feedback == [
            {"dt": FIRST, "rated": 6, "bad": bad}
        ]


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
    at = datetime(2026, 7, 11, tzinfo=UTC)
    seen = [
        RunRecord(
            "b", "train", "SUCCESS", at + timedelta(seconds=50), at + timedelta(seconds=170), workload="tutor", submitted="s"
        ),
        RunRecord("a", "logs", "SUCCESS", at, at + timedelta(seconds=40), workload="tutor", submitted="s"),
        RunRecord("x", "train", "SUCCESS", at, at + timedelta(seconds=40), workload="other"),
        RunRecord("k", "train", "STARTED", at, None, process="999999@5.00", workload="tutor"),
    ]
    steps = {
        "a": {"interactions": 20.0, "cleaned_interactions": 10.0},
        "b": {"sft_model": 60.0, "sft_model_learnt_nothing_held_out": 2.0},
    }
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
