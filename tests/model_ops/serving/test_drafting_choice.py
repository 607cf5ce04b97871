"""Which drafting is served, from measurements that are written here."""

import pytest
from pydantic import ValidationError

from model_ops.drafting.drafting_choice import (
    MeasuredDrafting,
    Rate,
    ReplayResult,
    break_even,
    choose_by_replay,
    choose_in_server,
    varying_drafting,
)
from model_ops.drafting.drafts import NO_DRAFTING, Drafting, with_drafter

NGRAM = Drafting(method="ngram", num_speculative_tokens=3)


def measured(drafting, tau=None, **speeds):
    """Speeds by concurrency (c1, c8); a round of requests takes as long as its tokens."""
    return MeasuredDrafting(
        drafting, {int(name[1:]): Rate(speed, int(name[1:]) * 100 / speed) for name, speed in speeds.items()}, tau
    )


PLAIN = measured(NO_DRAFTING, c1=100, c8=400)
HEAD = measured(with_drafter(5), 2.0, c1=133, c8=316)
LOOKUP = measured(NGRAM, 1.5, c1=120, c8=380)


@pytest.mark.parametrize(("levels", "chosen"), [([1], with_drafter(5)), ([8], NO_DRAFTING), ([1, 8], NGRAM), (None, NGRAM)])
def test_the_concurrency_of_the_endpoint_decides(levels, chosen):
    choice = choose_in_server([HEAD, PLAIN, LOOKUP], levels, p99_above=0.5)
    assert choice.drafting == chosen and choice.decided_by == "server" and choice.reason.startswith(chosen.label)
    assert choice.concurrencies == (levels or [1, 8])
    assert [(point.label, point.concurrency) for point in choice.curve] == [
        (each.drafting.label, level) for each in (HEAD, PLAIN, LOOKUP) for level in (1, 8)
    ]


def test_the_curve_holds_ratios_and_the_acceptance_that_would_break_even():
    point = next(
        point for point in choose_in_server([PLAIN, HEAD]).curve if point.method == "drafter" and point.concurrency == 8
    )
    assert (point.ratio, point.tau, point.tau_needed) == (316 / 400, 2.0, pytest.approx(2.0 / 0.79))
    assert point.p99_ratio == pytest.approx(400 / 316)
    plain = choose_in_server([PLAIN, HEAD]).curve[0]
    assert (plain.ratio, plain.tau, plain.tau_needed) == (1.0, None, None)


def test_of_ties_the_simplest_is_served():
    nearly = measured(Drafting(method="suffix", num_speculative_tokens=4), 1.5, c1=121, c8=380)
    assert choose_in_server([PLAIN, nearly, LOOKUP], [1]).drafting == NGRAM
    fewer = measured(Drafting(method="ngram", num_speculative_tokens=2), 1.5, c1=119, c8=380)
    assert choose_in_server([PLAIN, LOOKUP, fewer], [1]).drafting == fewer.drafting
    assert choose_in_server([PLAIN, measured(NGRAM, c1=101.9, c8=1)], [1]).drafting == NO_DRAFTING
    assert choose_in_server([PLAIN, measured(NGRAM, c1=102.1, c8=1)], [1]).drafting == NGRAM


def test_a_drafting_whose_slowest_answers_take_too_long_is_not_served():
    slow = MeasuredDrafting(with_drafter(5), {1: Rate(150, 1.2)}, 2.0)
    plain = MeasuredDrafting(NO_DRAFTING, {1: Rate(100, 1.0)})
    refused = choose_in_server([plain, slow], p99_above=0.1)
    assert refused.drafting == NO_DRAFTING and "p99 latency is 20% above" in refused.reason
    assert choose_in_server([plain, slow], p99_above=0.25).drafting == with_drafter(5)


def test_a_choice_needs_a_server_without_drafting_and_measured_concurrencies():
    with pytest.raises(ValueError, match="not measured without drafting"):
        choose_in_server([HEAD])
    with pytest.raises(ValueError, match=r"concurrencies \[2\] are not all among the measured ones, \[1, 8\]"):
        choose_in_server([PLAIN, HEAD], [2])


def test_k_by_batch_size_takes_the_best_of_each_concurrency():
    found = varying_drafting([PLAIN, HEAD, LOOKUP], lambda drafting: True)
    assert found == Drafting(method="drafter", num_speculative_tokens=5, by_batch_size=((1, 1, 5), (2, 8, 0)))
    assert varying_drafting([PLAIN, HEAD, LOOKUP], lambda drafting: drafting.method == "ngram").method == "ngram"
    assert varying_drafting([PLAIN, HEAD, LOOKUP], lambda drafting: False) is None
    two = measured(with_drafter(2), c1=120, c2=190, c4=300, c8=380)
    five = measured(with_drafter(5), c1=140, c2=190.5, c4=260, c8=316)
    plain = measured(NO_DRAFTING, c1=100, c2=160, c4=250, c8=400)
    assert varying_drafting([plain, two, five], lambda drafting: True).by_batch_size == ((1, 2, 5), (3, 4, 2), (5, 8, 0))


def test_k_by_batch_size_is_not_proposed_where_one_k_is_as_good():
    assert varying_drafting([PLAIN, measured(with_drafter(5), c1=133, c8=420)], lambda drafting: True) is None
    assert varying_drafting([PLAIN, measured(with_drafter(5), c1=133, c8=399)], lambda drafting: True) is None


@pytest.mark.parametrize(
    ("speeds", "says"),
    [
        ({"c1": 133, "c8": 316}, "pays up to about 3.6 requests at a time"),
        ({"c1": 133, "c8": 500}, "pays at every measured concurrency, 1 to 8"),
        ({"c1": 90, "c8": 316}, "pays at no measured concurrency, 1 to 8"),
        ({"c1": 90, "c8": 500}, "pays only at 8 requests at a time"),
    ],
)
def test_break_even(speeds, says):
    assert break_even(measured(NGRAM, **speeds), PLAIN).says == says


def replay(method, tau, k=3):
    return ReplayResult(method=method, num_speculative_tokens=k, tau=tau)


def test_without_a_server_the_drafter_has_to_draft_better_than_the_lookup():
    taus = [replay("ngram", 1.2, 1), replay("ngram", 1.4, 5), replay("drafter", 1.5, 2), replay("drafter", 1.8, 3)]
    better = choose_by_replay(taus, drafter_low=1.6)
    assert better.drafting == with_drafter(3) and "no server was asked" in better.reason and better.replayed == taus
    unsure = choose_by_replay(taus, drafter_low=1.39)
    assert unsure.drafting == Drafting(method="ngram", num_speculative_tokens=5) and "lower end 1.39" in unsure.reason


@pytest.mark.parametrize(("gain_low", "chosen"), [(0.0, "drafter"), (-0.01, "ngram"), (None, "ngram")])
def test_a_gain_on_the_same_prompts_says_more_than_two_intervals(gain_low, chosen):
    taus = [replay("ngram", 1.4, 5), replay("drafter", 1.5, 3)]
    assert choose_by_replay(taus, drafter_low=1.3, gain_low=gain_low).drafting.method == chosen


def test_without_a_server_no_lookup_is_served_for_speed_and_none_that_needs_a_package():
    alone = choose_by_replay([replay("ngram", 3.0), replay("suffix", 4.0)])
    assert alone.drafting == NO_DRAFTING and "only a server shows" in alone.reason and "arctic-inference" in alone.reason
    beside = choose_by_replay([replay("suffix", 4.0), replay("ngram", 1.4), replay("drafter", 1.8)], drafter_low=1.7)
    assert beside.drafting == with_drafter(3) and "suffix lookup has 4.00" in beside.reason
    assert choose_by_replay([]).drafting == NO_DRAFTING


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"method": "ngram"}, "every other method at least 1"),
        ({"method": "none", "num_speculative_tokens": 1}, "`none` drafts 0 tokens"),
        ({"method": "ngram", "num_speculative_tokens": 3, "by_batch_size": ((2, 3, 1),)}, "ranges begin at 1"),
        ({"method": "ngram", "num_speculative_tokens": 3, "by_batch_size": ((1, 2, 3), (4, 5, 1))}, "follow one another"),
        ({"method": "ngram", "num_speculative_tokens": 3, "by_batch_size": ((1, 2, 4),)}, "draft 0 to 3 tokens"),
    ],
)
def test_a_drafting_that_contradicts_itself_is_refused(values, says):
    with pytest.raises(ValidationError, match=says):
        Drafting(**values)


def test_labels():
    assert NO_DRAFTING.label == "no drafting" and NGRAM.label == "n-gram lookup, K = 3"
    varies = Drafting(method="drafter", num_speculative_tokens=5, by_batch_size=((1, 2, 5), (3, 4, 2), (5, 5, 1), (6, 8, 0)))
    assert varies.label == "drafter, K = 5 (2 at batch sizes 3 to 4, 1 at batch size 5, 0 from batch size 6)"
