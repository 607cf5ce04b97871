"""The payback of a release's drafter in one sentence: cost by stage, requests a day, concurrency; what is unknown has its
reason."""

import json
from datetime import UTC, datetime

import pytest
from examples import SETTINGS
from small_lake import trained_lake

from model_ops.drafting.drafting_choice import MeasuredDrafting, Rate, choose_in_server
from model_ops.drafting.drafts import NO_DRAFTING, with_drafter
from resources.deciding.worth import drafter_payback
from resources.endpoints.endpoints import Endpoint
from resources.releases.drafting_decision import write_choice

NOW = datetime(2026, 6, 4, 6, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path):
    """300 requests of 100 answer tokens in three days; every stage took 100 s."""
    return trained_lake(tmp_path)


def champion(lake):
    return Endpoint(lake, "shop").read().champion


def measured(lake, with_it, without=(100.0, 400.0, 800.0), concurrencies=None):
    """Tokens/s at 1, 8 and 32 requests at a time, with and without the drafter."""
    both = [
        MeasuredDrafting(each, {level: Rate(speed, 1.0) for level, speed in zip((1, 8, 32), speeds, strict=True)}, tau)
        for each, speeds, tau in ((NO_DRAFTING, without, None), (with_drafter(3), with_it, 2.0))
    ]
    write_choice(lake.artefacts("release") / "shop" / champion(lake), choose_in_server(both, concurrencies, server="vllm"))


def told(lake, **settings):
    return drafter_payback(lake, "shop", champion(lake), SETTINGS.model_copy(update=settings), NOW)


def test_a_measured_drafter_has_costs_a_break_even_and_a_concurrency(lake):
    measured(lake, (200.0, 500.0, 640.0), concurrencies=[1, 8])
    found = told(lake)
    assert found.stage_costs_s == {"speculator_dataset": 100.0, "speculator": 100.0} and found.requests_a_day == 100.0
    assert found.saved_s == pytest.approx(100 / 400 - 100 / 500)  # where the endpoint is fastest: 8 requests at a time
    assert found.break_even_requests == pytest.approx(200 / (30 * 0.05))
    assert found.says == (
        "the drafter cost 3 min of a device (speculator_dataset 2 min, speculator 2 min); it pays back within 30 days from 133 "
        "requests a day on (there are 100 now); drafter, K = 3 pays up to about 17.3 requests at a time"
    )


def test_devices_and_days_of_the_recipe_count(lake):
    measured(lake, (200.0, 500.0, 640.0), concurrencies=[1, 8])
    one, four = told(lake), told(lake, devices=4, payback_days=15.0)
    assert four.break_even_requests == pytest.approx(8 * one.break_even_requests)
    on_two = told(lake, devices_per_server=2)
    assert (on_two.saved_s, on_two.break_even_requests) == (2 * one.saved_s, one.break_even_requests / 2)
    assert "of 4 devices" in four.says and "within 15 days" in four.says
    assert told(lake, payback_days=None).break_even_requests == one.break_even_requests


def test_a_drafter_that_saves_nothing_never_pays_back(lake):
    measured(lake, (90.0, 300.0, 500.0))
    found = told(lake)
    assert found.break_even_requests is None and found.saved_s < 0
    assert (
        "so it never pays back; drafter, K = 3 pays at no measured concurrency, 1 to 32; the release does not draft"
        in found.says
    )


def test_without_a_server_it_is_unknown_and_says_what_to_do(lake):
    found = told(lake)
    assert found.break_even_requests is None and found.stage_costs_s["speculator"] == 100.0
    assert "is unknown: no server measured it with and without the drafter: name one in evaluation.server" in found.says


def test_what_cannot_be_read_is_said(lake):
    measured(lake, (200.0, 500.0, 640.0))
    log = lake.table("interactions") / "_delta_log"
    next(log.glob("*.json")).write_text("{")
    assert "no answers with a number of tokens can be read from the logs" in told(lake).says
    (lake.artefacts("release") / "shop" / champion(lake) / "release.json").write_text("{")
    assert "whether its drafter pays is unknown: " in told(lake).says


def test_a_release_without_a_drafter_has_nothing_to_pay_back(lake):
    path = lake.artefacts("release") / "shop" / champion(lake) / "release.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "speculator": None}))
    assert told(lake).says == "it has no drafter, so there is nothing to pay back"
