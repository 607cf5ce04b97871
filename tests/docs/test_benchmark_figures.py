"""docs/benchmarks.md and README's table say what was recorded: they are what `python -m benchmarks.page` makes of it."""

import pytest

from benchmarks import page


def test_the_page_and_the_readme_are_what_the_recorded_results_make():
    assert page.PAGE.read_text() == page.page(), "run `python -m benchmarks.page`; its text is in benchmarks/*.md.jinja"
    text = page.README.read_text()
    assert text == page.readme(text), "run `python -m benchmarks.page`; its text is in benchmarks/*.md.jinja"


def test_every_recorded_run_is_on_the_page():
    text = page.PAGE.read_text()
    assert not [path.stem for path in page.RESULTS.glob("*.json") if f"benchmarks.{path.stem}" not in text]


def test_words_that_the_results_do_not_support_are_an_error():
    assert page.recorded(True, "identical") == "identical"
    with pytest.raises(ValueError, match="do not say 'identical'"):
        page.recorded(False, "identical")


def test_figures_are_rounded_half_up_and_gains_have_a_sign():
    assert [page.fixed(2.125), page.fixed(0.5, 0), page.percent(0.1234), page.about(311555)] == ["2.13", "1", "12.3", "312,000"]
    assert [page.gain(0.034), page.gain(-0.2), page.gain(0.004, 0)] == ["+3.4", "-20.0", "0"]
    assert page.bounds([2, 1.5, 2.255]) == "[1.50, 2.26]"
