"""Of a lake in a bucket, every machine compares traffic with the reference window that the first machine chose."""

from dataclasses import replace
from datetime import date, timedelta

import numpy as np

from resources.drifting.chosen_window import ChosenWindow, KnownVocabulary, ReferenceWindow
from resources.drifting.days import Reference
from stores.mirror.space import SMALL_BYTES

FIRST = date(2026, 6, 1)


def window(start, size):
    days = tuple(start + timedelta(day) for day in range(4))
    counts = {day: np.random.default_rng(1).random((size // 16, 2)) for day in days[1:]}
    return ReferenceWindow(Reference(days[0], days[-1], days[:1], days[1:]), KnownVocabulary({}, {}), "code", "files",
        dict.fromkeys(days, 9), counts)  # fmt: skip


def test_a_window_reaches_other_machines_and_the_first_one_of_two_stays(machine):
    there, here = machine("a"), machine("b")
    one, two = (ChosenWindow(lake, "tutor", "", 4, "code") for lake in (there, here))
    first = window(FIRST, 2 * SMALL_BYTES)  # too large to be pulled with all others
    one.keep(first)
    assert two.window is None
    two.keep(window(FIRST + timedelta(7), 160))
    assert ChosenWindow(here, "tutor", "", 4, "code").window == first
    here.mirror.pull()
    read = ChosenWindow(here, "tutor", "", 4, "code").with_counts()
    assert read == first and all(np.array_equal(read.counts[day], found) for day, found in first.counts.items())
    changed = replace(first, files="other files", counts=window(FIRST, 2 * SMALL_BYTES + 160).counts)
    ChosenWindow(here, "tutor", "", 4, "code").keep(changed)
    there.mirror.pull()
    assert ChosenWindow(there, "tutor", "", 4, "code").with_counts() == changed
