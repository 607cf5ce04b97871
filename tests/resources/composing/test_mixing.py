"""How many rows each source gives: shares, numbers, bounds, repeats, and what is said when there are too few."""

import json
from types import SimpleNamespace

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError

from assets.shortages import tell_shortages
from resources.composing.dataset_settings import DatasetSettings
from resources.composing.mixing import Pool, Take, cluster_quotas, cluster_takes, sampling_quotas, shortfalls


def quotas(available, **settings):
    pools = {Pool(name, name.startswith("synthetic")): rows for name, rows in available.items()}
    return {pool.source: rows for pool, rows in sampling_quotas(pools, DatasetSettings(**settings)).items()}


def notes(available, **settings):
    pools = {Pool(name): rows for name, rows in available.items()}
    chosen = DatasetSettings(**settings)
    return shortfalls(pools, sampling_quotas(pools, chosen), chosen)


names = st.sampled_from(["a", "b", "c", "synthetic"])


@given(
    available=st.dictionaries(names, st.integers(0, 400), min_size=1),
    mix=st.dictionaries(names, st.floats(0, 1) | st.fixed_dictionaries({"rows": st.integers(1, 90)})).filter(
        lambda mix: not mix or any(mix.values())
    ),
    limits=st.dictionaries(
        names,
        st.fixed_dictionaries(
            {}, optional={"max_rows": st.integers(0, 300), "max_share": st.floats(0.01, 1), "max_repeats": st.integers(1, 3)}
        ),
    ),
    max_rows=st.none() | st.integers(400, 900),
    synthetic=st.none() | st.floats(0, 1),
)
@hypothesis_settings(max_examples=200, deadline=None)
def test_law_no_bound_is_broken_and_nothing_is_invented(available, mix, limits, max_rows, synthetic):
    got = quotas(available, mix=mix, limits=limits, max_rows=max_rows, max_synthetic_share=synthetic)
    total = sum(got.values())
    assert max_rows is None or total <= max_rows
    for source, rows in got.items():
        bounds = limits.get(source, {})
        assert 0 <= rows <= available[source] * bounds.get("max_repeats", 1)
        assert rows <= bounds.get("max_rows", rows) and rows <= bounds.get("max_share", 1) * total + 1e-6
        assert not mix or source in mix or not rows
    assert synthetic is None or got.get("synthetic", 0) <= synthetic * total + 1e-6
    if not limits and synthetic is None and not any(isinstance(wish, dict) for wish in mix.values()):
        named = sum(rows for source, rows in available.items() if not mix or mix.get(source, 0) > 0)
        assert total == min(named, max_rows or named)


def test_shares_follow_the_mix_as_far_as_rows_suffice():
    assert quotas({"a": 1000, "b": 1000}, mix={"a": 3, "b": 1}, max_rows=400) == {"a": 300, "b": 100}
    assert quotas({"a": 1000, "b": 10}, mix={"a": 1, "b": 1}, max_rows=400) == {"a": 390, "b": 10}
    assert quotas({"a": 300, "b": 100}, max_rows=40) == {"a": 30, "b": 10}
    assert quotas({"a": 300, "b": 100}) == {"a": 300, "b": 100}


def test_numbers_are_served_before_shares():
    assert quotas({"a": 1000, "b": 1000}, mix={"a": 0.8, "b": {"rows": 50}}, max_rows=400) == {"a": 350, "b": 50}
    assert quotas({"a": 1000, "b": 1000}, mix={"a": 1, "b": {"rows": 50}}) == {"a": 1000, "b": 50}
    with pytest.raises(ValidationError, match="asks for 500 rows by number, and max_rows allows 400"):
        DatasetSettings(mix={"a": {"rows": 500}}, max_rows=400)


def test_rows_are_repeated_only_as_often_as_stated():
    few = {"a": 1000, "b": 10}
    assert quotas(few, mix={"a": 0.8, "b": 0.2}, max_rows=200) == {"a": 190, "b": 10}
    assert quotas(few, mix={"a": 0.8, "b": 0.2}, max_rows=200, limits={"b": {"max_repeats": 3}}) == {"a": 170, "b": 30}
    assert quotas(few, mix={"a": 0.8, "b": 0.2}, max_rows=200, limits={"b": {"max_repeats": 9}}) == {"a": 160, "b": 40}
    assert cluster_takes({"x": 6, "y": 4}, 24, "none") == {"x": Take(2, 2), "y": Take(2, 2)}
    assert cluster_takes({"x": 6, "y": 4}, 10, "none") == {"x": Take(1, 0), "y": Take(1, 0)}


def test_bounds_on_sources_and_on_synthetic_rows():
    assert quotas({"a": 900, "b": 100}, limits={"a": {"max_rows": 50}}) == {"a": 50, "b": 100}
    assert quotas({"a": 900, "b": 100}, limits={"a": {"max_share": 0.5}}) == {"a": 100, "b": 100}
    assert quotas({"a": 900, "b": 900}, mix={"a": 0.8, "b": 0.2}, max_rows=100, limits={"a": {"max_share": 0.5}}) == {"a": 50,
            "b": 50}  # fmt: skip
    assert quotas({"a": 90, "synthetic": 900}, max_synthetic_share=0.1) == {"a": 90, "synthetic": 10}
    assert quotas({"a": 90, "synthetic": 900}, max_synthetic_share=0) == {"a": 90, "synthetic": 0}


def test_what_there_are_too_few_rows_for_is_said():
    few = {"a": 1000, "b": 10}
    assert notes(few, mix={"a": 1, "b": {"rows": 50}}) == ["mix asks for 50 rows of b, which has 10 rows for training"]
    [said] = notes(few, mix={"a": 0.8, "b": 0.2}, max_rows=200)
    assert said == "mix asks for 40 rows of b (0.2 of the shares), which has 10 rows for training"
    assert notes(few, mix={"b": 1}, max_rows=50)[-1] == "max_rows asks for 50 rows, and the mix has 10"
    assert notes({"a": 5}, mix={"a": 1, "b": 1}) == ["mix gives b a share, and it has no row for training"]
    assert notes(few, mix={"a": 1, "b": 1}) == [] and notes(few, max_rows=2000) == []
    assert notes(few, mix={"a": 1, "b": {"rows": 50}}, limits={"b": {"max_rows": 5}}) == []


@pytest.mark.parametrize("wrong", [
    {"mix": {"a": -1}}, {"mix": {"a": 0}}, {"mix": {"a": "half"}}, {"mix": {"a": True}}, {"mix": {"a": {"rows": 0}}},
    {"mix": {"a": {"rows": 3, "share": 1}}}, {"mix": {"a": {}}}, {"limits": {"a": {"max_repeats": 0}}},
    {"max_synthetic_share": 2}, {"test_share": 0.6, "validation_share": 0.4}, {"mixx": {}},
])  # fmt: skip
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValidationError):
        DatasetSettings(**wrong)


@given(
    sizes=st.dictionaries(st.text("abcdef#", max_size=4), st.integers(1, 300), min_size=1, max_size=30),
    wanted=st.integers(0, 4000),
    balance=st.sampled_from(["none", "sqrt", "uniform"]),
)
@hypothesis_settings(deadline=None)
def test_cluster_quotas_add_up_and_are_never_more_than_there_is(sizes, wanted, balance):
    quotas = cluster_quotas(sizes, wanted, balance)
    assert quotas.keys() == sizes.keys()
    assert sum(quotas.values()) == min(wanted, sum(sizes.values()))
    assert all(0 <= quotas[cluster] <= size for cluster, size in sizes.items())
    if balance == "uniform":
        fair = min(wanted, sum(sizes.values())) / len(sizes)
        assert all(quotas[cluster] == size for cluster, size in sizes.items() if size <= fair)
        whole = [quotas[cluster] for cluster, size in sizes.items() if quotas[cluster] < size]
        assert not whole or max(whole) - min(whole) <= 1
    if balance == "none":
        share = min(wanted, sum(sizes.values())) / sum(sizes.values())
        assert all(abs(quotas[cluster] - size * share) < 1 for cluster, size in sizes.items())


def test_cluster_quotas_between_proportional_and_equal():
    sizes = {"frequent": 9_900, "rare": 100}
    assert cluster_quotas(sizes, 200, "none") == {"frequent": 198, "rare": 2}
    assert cluster_quotas(sizes, 200, "sqrt") == {"frequent": 182, "rare": 18}
    assert cluster_quotas(sizes, 200, "uniform") == {"frequent": 100, "rare": 100}


def lines(tmp_path, monkeypatch, metrics):
    monkeypatch.setenv("MILLRACE_PROGRESS", str(tmp_path / "progress"))
    (tmp_path / "progress").touch()
    tell_shortages(dg.build_asset_context(), SimpleNamespace(name="help/best", metrics=metrics))
    return [json.loads(line) for line in (tmp_path / "progress").read_text().splitlines()]


def test_a_shortage_is_told_in_one_line_with_the_mixture_that_came_out(tmp_path, monkeypatch):
    metrics = {
        "notes": ["mix asks for 36 rows of gateway, which has 25 rows for training", "max_rows asks for 60 rows, and the mix has 49"],
        "sources": {"gateway": 25, "claude": 12, "rules": 12},
    }  # fmt: skip
    assert lines(tmp_path, monkeypatch, metrics) == [
        {
            "event": "note",
            "message": (
                "best: mix asks for 36 rows of gateway, which has 25 rows for training; max_rows asks for 60 rows, and the mix has 49; "
                "its training rows are claude 12 (24%), gateway 25 (51%), rules 12 (24%)"
            ),
        }
    ]


def test_a_calibration_set_names_no_mixture_and_a_whole_dataset_is_silent(tmp_path, monkeypatch):
    assert lines(tmp_path, monkeypatch, {"notes": ["too few"]})[0]["message"] == "best: too few"
    (tmp_path / "progress").unlink()
    assert lines(tmp_path, monkeypatch, {"notes": [], "sources": {"gateway": 25}}) == []
