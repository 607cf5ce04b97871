"""What a training that may end early is worth: looked up from the release, the logs, the schedule and earlier trainings."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from examples import FACTS, SETTINGS
from small_lake import trained_lake

from model_ops.drafting.drafting_choice import CurvePoint, DraftingChoice
from model_ops.drafting.drafts import NO_DRAFTING, Drafting, with_drafter
from model_ops.operations.sft_settings import SftSettings
from model_ops.speculators.eagle3.architecture import Eagle3Settings
from resources.artefacts.registry import Registry
from resources.deciding.causes import days_between
from resources.deciding.worth import looked_up
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.releases.drafting_decision import write_choice
from resources.workshop.training_job import counted_settings

NOW = datetime(2026, 6, 4, 6, tzinfo=UTC)
DRAFTER = Eagle3Settings(early_end={"enabled": True})


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Three days of 100 requests with 100 answer tokens, a champion, 1,000 tokens/s by its evaluation, tau 2.0."""
    return trained_lake(tmp_path_factory.mktemp("worth"))


def drafter(lake, tokens, seconds, architecture="eagle3"):
    registry = Registry(lake, "shop")
    draft = registry.draft(
        "model",
        "speculator",
        "speculator",
        ("resources/stages/table.py",),
        {"architecture": architecture, "tokens": tokens},
        [],
    )
    draft.directory.mkdir(parents=True, exist_ok=True)
    (draft.directory / "file").write_text("")
    return draft.finished or registry.finish(draft, {"tokens": tokens, "seconds": seconds, "validation_expected_tau": 2.0})


def found(lake, settings=DRAFTER, facts=FACTS, stage="speculator"):
    return looked_up(settings, lake, stage, facts, NOW).early_end


def test_a_training_that_is_not_asked_to_end_early_looks_nothing_up(tmp_path):
    settings = Eagle3Settings()
    assert looked_up(settings, LakeLayout.open(tmp_path / "lake"), "speculator", FACTS) is settings


def test_decoding_takes_what_the_evaluation_measured_until_a_server_was_asked(lake):
    known = found(lake)
    assert known.decode_hours_per_day == pytest.approx(100 * 100 / 1_000 / 3_600)
    assert (known.decode_hours_at_tau, known.serves_days) == (2.0, 30.0)
    declared = found(
        lake,
        facts=replace(
            FACTS,
            decide=SETTINGS.model_copy(update={"tokens_per_second": 50.0, "requests_per_day": 7_200.0, "payback_days": 5.0}),
        ),
    )
    assert declared.decode_hours_per_day == pytest.approx(4.0) and declared.serves_days == 5.0


def test_what_the_recipe_gives_stays(lake):
    given = {
        "enabled": True,
        "decode_hours_per_day": 3.0,
        "serves_days": 2.0,
        "trained_tokens_per_second": 9.0,
        "decode_hours_at_tau": 1.5,
    }
    assert found(lake, Eagle3Settings(early_end=given)) == Eagle3Settings(early_end=given).early_end


def test_a_drafter_that_continues_measures_the_last_one_itself(lake):
    assert found(lake, Eagle3Settings(early_end={"enabled": True}, continue_from="last")).decode_hours_at_tau is None


def test_a_drafter_serves_from_one_time_of_the_schedule_to_the_next(lake):
    assert found(lake, facts=replace(FACTS, cron="0 3 * * 1")).serves_days == 7.0
    assert days_between("0 3 * * *", "Europe/Amsterdam", datetime(2026, 7, 1, tzinfo=UTC)) == 1.0
    assert days_between("0 3 * * 1-5", "UTC", datetime(2026, 7, 1, tzinfo=UTC)) == pytest.approx(9 / 7)


def test_tokens_a_second_are_those_of_the_last_training_of_the_architecture(tmp_path):
    lake = trained_lake(tmp_path)
    assert found(lake).trained_tokens_per_second is None  # the version that there is says no number of tokens
    drafter(lake, 5_000, 10.0)
    drafter(lake, 9_000, 10.0)
    drafter(lake, 70, 10.0, architecture="dflash")
    drafter(lake, 0, 0.5)  # continued after its last step
    assert found(lake).trained_tokens_per_second == 900.0


def choice(drafting, **more):
    curve = [
        CurvePoint(
            label=each.label,
            method=each.method,
            num_speculative_tokens=each.num_speculative_tokens,
            concurrency=level,
            tokens_per_second=speed,
            p99_s=1.0,
            ratio=1.0,
            p99_ratio=1.0,
        )
        for each, level, speed in (
            (with_drafter(3), 1, 100.0),
            (with_drafter(3), 8, 400.0),
            (with_drafter(3), 32, 900.0),
            (NO_DRAFTING, 8, 5_000.0),
        )
    ]
    return DraftingChoice(drafting=drafting, decided_by="server", reason="", concurrencies=[1, 8], curve=curve, **more)


def test_the_release_says_how_fast_it_decodes_and_a_release_without_its_drafter_says_nothing(tmp_path):
    lake = trained_lake(tmp_path)
    release = lake.artefacts("release") / "shop" / Endpoint(lake, "shop").read().champion
    write_choice(release, choice(with_drafter(3)))
    assert found(lake).decode_hours_per_day == pytest.approx(
        100 * 100 / 400 / 3_600
    )  # the fastest of what the endpoint runs at
    on_two = replace(FACTS, decide=SETTINGS.model_copy(update={"devices_per_server": 2}))
    assert found(lake, facts=on_two).decode_hours_per_day == 2 * found(lake).decode_hours_per_day
    for other in (NO_DRAFTING, Drafting(method="ngram", num_speculative_tokens=3)):
        write_choice(release, choice(other))
        assert found(lake).decode_hours_per_day is None and found(lake).serves_days == 30.0


def test_a_new_lake_knows_nothing_and_a_model_needs_no_traffic(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    assert found(lake).decode_hours_per_day is None
    model = SftSettings(early_end={"enabled": True, "nats_per_device_hour": 0.1})
    assert found(lake, model, stage="sft_model") == model.early_end


def test_what_is_looked_up_counts_for_no_version_and_what_is_declared_does(lake):
    def version(**changed):
        return counted_settings(Eagle3Settings(**changed).resolved())

    declared = version(early_end={"enabled": True})
    assert version().keys() == declared.keys() - {"early_end", "validation_tokens", "mesh"}
    assert version(early_end={"evaluations": 7}, validation_tokens=9) == version()
    for changed in (
        {"early_end": {"enabled": True, "serves_days": 3.0}},
        {"early_end": {"enabled": True}, "validation_tokens": 900},
        {"early_end": {"enabled": True}, "mesh": {"processes": 2}},
    ):
        assert version(**changed) != declared
    assert looked_up(DRAFTER.resolved(), lake, "speculator", FACTS, NOW).early_end.decode_hours_per_day > 0
