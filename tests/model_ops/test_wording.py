"""Numbers in sentences."""

import pytest

from model_ops.jobs.wording import counted, duration, plural, singular, size


@pytest.mark.parametrize(
    "count, word, said",
    [
        (1, "row", "1 row"), (0, "row", "0 rows"), (2, "row", "2 rows"), (2400, "log object", "2,400 log objects"),
        (1, "log object", "1 log object"), (3, "process", "3 processes"), (2, "exact copy", "2 exact copies"),
    ],
)  # fmt: skip
def test_a_count_bends_its_word(count, word, said):
    assert counted(count, word) == said


@pytest.mark.parametrize("many, one", [("steps", "step"), ("processes", "process"), ("log lines", "log line"), ("", "")])
def test_a_unit_is_said_of_one(many, one):
    assert singular(many) == one
    assert plural(2, one) == many or not one


@pytest.mark.parametrize(
    "seconds, said",
    [
        (0.2, "1 s"),
        (45.4, "45 s"),
        (89.4, "89 s"),
        (90, "2 min"),
        (840, "14 min"),
        (5399, "1 h 30 min"),
        (7200, "2 h"),
        (7800, "2 h 10 min"),
        (50 * 3600, "2 days 2 h"),
        (72 * 3600, "3 days"),
        (9_082_453 * 86_400 + 3_600, "9,082,453 days"),
    ],
)
def test_a_duration_is_rounded_to_what_one_waits_by(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(
    "count, said",
    [
        (0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1000, "1.0 kB"), (123_456, "123 kB"), (999_700, "1.0 MB"),
        (1_234_000_000, "1.2 GB"), (5e15, "5,000 TB"),
    ],
)  # fmt: skip
def test_a_size_has_a_unit(count, said):
    assert size(count) == said
