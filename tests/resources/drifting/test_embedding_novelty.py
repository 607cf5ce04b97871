"""Novelty by embeddings: far prompts alarm at the stated rate, each row is embedded once, and nothing stays of rows that are
gone."""

import hashlib
import json
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cleaned_rows import FIRST, days_of_rows, generator, store

from resources.drifting import session_counts
from resources.drifting.compare import WindowComparison
from resources.drifting.days import Reference
from resources.drifting.drift import compare_traffic
from resources.drifting.permutation import Columns
from resources.drifting.prompt_vectors import Embedder, PromptVectors
from resources.drifting.session_counts import FAR, DriftInputs, is_far, nearest, usual_similarity
from resources.drifting.settings import DriftEmbeddings, DriftSettings
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables

SETTINGS = DriftSettings(
    reference_days=4, windows=[1], false_alarms_per_1000_days=10, embeddings=DriftEmbeddings(model="/models/embedder")
)
END, NOW = FIRST + timedelta(4), datetime(2026, 6, 20, tzinfo=UTC)


@pytest.fixture(autouse=True)
def no_known_words(monkeypatch):
    """Prompts are too short for an n-gram, so that the test of words says nothing."""
    monkeypatch.setattr(session_counts, "NGRAM", 16)


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


class Meaning:
    """Embeds a text by its topic, the word after `the`: others with the same topic lie near it. Counts texts."""

    def __init__(self):
        self.texts, self.jobs = [], 0

    def __call__(self, folder):
        texts = pq.read_table(folder / "texts.parquet")["text"].to_pylist()
        self.texts, self.jobs = self.texts + texts, self.jobs + 1
        return unit(np.array([self.topic(text) + 0.2 * self.draw(text) for text in texts]))

    def topic(self, text):
        return self.draw(text.split("the ")[1].split()[0])

    def draw(self, text):
        return np.random.default_rng(int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)).standard_normal(24)


@pytest.fixture
def tables(tmp_path):
    return Tables(LakeLayout.open(tmp_path / "lake"))


def compared(tables, meaning, settings=SETTINGS, digest="d" * 64):
    return compare_traffic(tables, "tutor", settings, DriftInputs(), now=NOW, embedder=Embedder(meaning, digest))


def far(report):
    return {row["dt"]: row for row in report.rows if row["test"] == "novelty_embeddings"}


def test_nearest_is_the_highest_cosine_over_blocks_and_the_bound_leaves_the_own_session_out():
    rng = generator(1)
    known, rows = unit(rng.standard_normal((700, 8))), unit(rng.standard_normal((1_100, 8)))
    assert np.allclose(nearest(rows, known), (rows @ known.T).max(axis=1)) and len(nearest(rows[:0], known)) == 0
    twins = np.repeat(known[:200], 2, axis=0)  # each session has its prompt twice
    usual = usual_similarity(twins, np.repeat(np.arange(200), 2))
    among = known[:200] @ known[:200].T - 3 * np.eye(200)
    assert usual == pytest.approx(np.quantile(among.max(axis=1), FAR), abs=1e-5) and usual < 0.999
    assert usual_similarity(known, np.zeros(700, int)) == -1.0 == usual_similarity(known[:0], np.zeros(0, int))
    assert not is_far(known[:5], known, 1.0).any()  # the same text, though vectors are rounded
    with pytest.raises(ValueError, match="nothing known"):
        nearest(rows, known[:0])


def simulated(rng, days, sessions, topics, new, share, spread=0.35):
    """Vectors and sessions by day: sessions of 1 to 5 prompts on one topic; `share` of them on new ones."""
    found = []
    for _ in range(days):
        about = np.where(
            rng.random(sessions) < share,
            len(topics) + rng.integers(len(new), size=sessions),
            rng.integers(len(topics), size=sessions),
        )
        lengths = rng.integers(1, 6, sessions)
        centres = np.concatenate([topics, new])[np.repeat(about, lengths)]
        found.append((unit(centres + spread * rng.standard_normal(centres.shape)), np.repeat(np.arange(sessions), lengths)))
    return found


def counted(day, known, usual, sessions):
    vectors, numbers = day
    away = is_far(vectors, known, usual)
    return np.stack([np.bincount(numbers, away, sessions), np.bincount(numbers, ~away, sessions)], axis=1)


def alarms_of(seed, share, rate, windows, sessions=60):
    """Windows of a day that alarm, after a reference of 7 + 21 days on 30 topics; `share` of their sessions is on new ones."""
    rng = generator(seed)
    topics, new = rng.standard_normal((30, 24)), rng.standard_normal((5, 24))
    vocabulary = simulated(rng, 7, sessions, topics, new, 0)
    known = np.concatenate([vectors for vectors, _ in vocabulary])
    usual = usual_similarity(
        known, np.concatenate([numbers + sessions * place for place, (_, numbers) in enumerate(vocabulary)])
    )
    days = [FIRST + timedelta(place) for place in range(28)]
    quiet = simulated(rng, 21, sessions, topics, new, 0)
    comparison = WindowComparison(
        Reference(days[0], days[-1], tuple(days[:7]), tuple(days[7:])),
        {day: counted(each, known, usual, sessions) for day, each in zip(days[7:], quiet, strict=True)},
        [Columns("novelty_embeddings", "rise", 0, 2)],
        DriftSettings(windows=[1]),
        rate,
        f"simulated {seed}",
    )
    alarms = 0
    for place, window in enumerate(simulated(rng, windows, sessions, topics, new, share)):
        day = days[-1] + timedelta(1 + place)
        alarms += comparison.of_day(day, {day: counted(window, known, usual, sessions)})[0].alarm
    return alarms


def test_a_quarter_of_new_topics_is_found_within_a_day():
    assert alarms_of(7, share=0.25, rate=0.001, windows=40) >= 36


def test_quiet_days_alarm_at_the_stated_rate_on_average_over_references():
    """120 quiet days at a rate of 0.1: 12 are expected at most; 22 or more would be a chance of 1 in 200."""
    assert 0 < sum(alarms_of(seed, share=0, rate=0.1, windows=12) for seed in range(10)) < 22


def other_topic(rng):
    return {"prompt": "tell me about the sea of the stone"} if rng.random() < 0.4 else {}


def test_a_day_of_new_topics_in_known_words_alarms_and_the_quiet_day_before_it_does_not(tables):
    store(
        tables,
        "cleaned_interactions",
        [*days_of_rows(5, generator(1)), *days_of_rows(1, generator(2), of=other_topic, first=END + timedelta(1))],
    )
    report = compared(tables, Meaning())
    quiet, changed = (far(report)[day] for day in (END, END + timedelta(1)))
    assert quiet["p"] > 0.01 and not quiet["alarm"] and quiet["sessions"] == 40
    assert changed["alarm"] and changed["value"] > 0.2 and changed["p"] <= changed["level"]
    assert all("nothing to count" in row["problem"] for row in report.rows if row["test"] == "novelty")


def test_each_row_is_embedded_once_whatever_is_compared_with_it(tables):
    meaning = Meaning()
    store(tables, "cleaned_interactions", days_of_rows(5, generator(1), sessions=25))
    first = compared(tables, meaning)
    read = len(meaning.texts)
    assert meaning.jobs == 1 and 5 * 25 <= read <= 5 * 25 * 4  # at most 4 of a session's turns
    store(tables, "cleaned_interactions", days_of_rows(1, generator(2), sessions=25, first=END + timedelta(1)))
    second = compared(tables, meaning, SETTINGS.model_copy(update={"least_sessions": 21}))
    assert set(far(second)) == {END, END + timedelta(1)} and far(second)[END]["value"] == far(first)[END]["value"]
    assert meaning.jobs == 2 and len(meaning.texts) - read <= 25 * 4  # the new day only


def test_without_a_model_no_such_test_is_there_and_the_others_are_the_same(tables, tmp_path):
    rows = days_of_rows(5, generator(3))
    store(tables, "cleaned_interactions", rows)
    other = Tables(LakeLayout.open(tmp_path / "other"))
    store(other, "cleaned_interactions", rows)
    without = compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW)
    values = [{row["test"]: row["value"] for row in report.rows} for report in (without, compared(other, Meaning()))]
    assert set(values[1]) - set(values[0]) == {"novelty_embeddings"} and values[0].items() <= values[1].items()
    assert not (tables.lake.root / ".remembered" / "embeddings").exists()


def test_of_many_sessions_the_same_share_is_embedded_on_every_day(tables, monkeypatch):
    meaning = Meaning()
    monkeypatch.setattr(session_counts, "PROMPTS_A_SESSION", 1)
    settings = SETTINGS.model_copy(update={"embeddings": DriftEmbeddings(model="/m", sessions_per_day=20)})
    store(
        tables,
        "cleaned_interactions",
        [*days_of_rows(4, generator(4)), *days_of_rows(1, generator(5), sessions=120, first=END)],
    )
    report = compared(tables, meaning, settings)
    kept = {
        path.stem: pq.read_metadata(path).num_rows for path in tables.lake.root.glob(".remembered/embeddings/tutor/*/*.parquet")
    }
    assert 40 <= kept.pop(END.isoformat()) <= 80 and 50 <= sum(kept.values()) <= 110  # half of 120, and of 4 days of 40
    assert far(report)[END]["sessions"] == 120 and far(report)[END]["value"] is not None


def prompts(*numbers, text="the mill"):
    return pa.table(
        {
            "interaction_id": [f"i{number}" for number in numbers],
            "content_sha256": [f"c{number}" for number in numbers],
            "text": [f"{text} {number}" for number in numbers],
        }
    )


def test_vectors_of_rows_days_and_models_that_are_gone_do_not_stay(tmp_path):
    lake, meaning, day = LakeLayout.open(tmp_path / "lake"), Meaning(), date(2026, 6, 1)
    kept = PromptVectors(lake, "tutor", Embedder(meaning, "a" * 64))
    first = kept.of_day(day, prompts(1, 2, 3))
    assert np.allclose(np.linalg.norm(first, axis=1), 1) and kept.has(day) and len(meaning.texts) == 3
    assert np.array_equal(kept.of_day(day, prompts(3, 1)), first[[2, 0]]) and len(meaning.texts) == 3
    kept.of_day(day, prompts(2))
    assert len(meaning.texts) == 4  # its vector was gone with its row
    [path] = lake.root.glob(".remembered/embeddings/tutor/*/*.parquet")
    path.write_bytes(b"broken")
    assert len(kept.of_day(day, prompts(1))) == 1 and pq.read_metadata(path).num_rows == 1
    kept.make({day + timedelta(1): prompts()})
    assert kept.has(day + timedelta(1)) and len(kept.of_day(day + timedelta(1), prompts())) == 0
    (path.parent / ".texts-left").mkdir()
    kept.keep_days([day + timedelta(1)])
    assert not path.exists()
    PromptVectors(lake, "tutor", Embedder(meaning, "b" * 64))
    assert not path.parent.exists()


def test_a_text_without_a_vector_is_not_compared(tables):
    def nothing(folder):
        return np.zeros((pq.read_metadata(folder / "texts.parquet").num_rows, 4), np.float32)

    store(
        tables,
        "cleaned_interactions",
        days_of_rows(5, generator(1), of=lambda rng: {"messages": json.dumps([])} if rng.random() < 0.1 else {}),
    )
    row = far(compared(tables, nothing))[END]
    assert row["value"] is None and "nothing to count" in row["problem"]
