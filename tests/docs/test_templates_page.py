"""The table of docs/templates.md is what the benchmark finds."""

from pathlib import Path

import pytest

from benchmarks.templates import SHARED, judged, table

PAGE = Path(__file__).parents[2] / "docs" / "templates.md"


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data/chat_templates")
def test_the_table_is_what_the_benchmark_finds():
    assert PAGE.read_text().endswith(table(judged(sorted(SHARED.glob("*.jinja")))) + "\n")
