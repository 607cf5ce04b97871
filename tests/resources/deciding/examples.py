"""Evidence, facts and decisions to weigh, as a workload with a released drafter has them."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from resources.deciding.costs import ActionCost
from resources.deciding.decisions import Decision, Option
from resources.deciding.evidence import DecideSettings, Evidence, RecipeFacts, TrainingRecord
from resources.stages.model_policy import ModelPolicy

NOW = datetime(2026, 6, 10, 12, tzinfo=UTC)
SETTINGS = DecideSettings(enabled=True)
OFF = frozenset({"second_sft", "preference", "reward_model", "rft", "merge", "teacher", "curation.judge"})
OFF |= {"datasets.rl_prompts", "datasets.calibration", "datasets.preference"}
FACTS = RecipeFacts("shop", ModelPolicy(off=OFF), architecture="eagle3", evaluation_prompts=200, decide=SETTINGS)


def with_settings(settings, facts=FACTS):
    return replace(facts, decide=settings)


DRAFTER, MODEL = TrainingRecord("d1", 1_000), TrainingRecord("m1", 1_000)
TRAFFIC = {"requests_a_day": 1_000_000, "answer_tokens_a_request": 100, "tokens_per_second": 1_000.0}
SEEN = Evidence("shop", "r1", rows=1_300, newest_day=date(2026, 6, 9), drafter=DRAFTER, model=MODEL, **TRAFFIC)
COSTS = {
    "drafter_continued": ActionCost({"speculator": 900.0}),
    "drafter_new": ActionCost({"speculator": 3_600.0}),
    "sft_continued": ActionCost({"sft_model": 7_200.0}),
    "full": ActionCost({"sft_model": 36_000.0}),
}


def decision(
    number=1,
    days_ago=1.0,
    outcome="released",
    action="drafter_continued",
    predicted_s=900.0,
    cost_s=1_000.0,
    predicted_gain=0.05,
    gain=None,
    **more,
) -> Decision:
    """A decision that started a run, settled unless it is open."""
    ts = NOW - timedelta(days=days_ago)
    option = Option(action, predicted_s, None, predicted_gain)
    about = ("shop", f"{number:016x}", ts, "new_logs", "", {"devices": 1}, [option], action, "", False)
    settled = Decision(*about, "run", outcome, cost_s, None, gain, ts + timedelta(hours=1))
    return replace(settled, **more)


RECIPE = {
    "workload": "shop",
    "base_model": "tiny",
    "sources": {"gateway": {"uri": "logs"}},
    "first_day": "2026-06-01",
    "automation": {"decide": {"enabled": True, "requests_per_day": 10_000_000}},
}
