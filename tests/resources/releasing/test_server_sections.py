"""What a release's page says of a real server."""

from dataclasses import replace

import pytest

from resources.releasing.model_card import render
from resources.releasing.server_sections import server_sections

MEASURED = {"against": "own layers", "on": "held-out sessions", "n": 16, "counted": "rows", "unit": "nats per token"}
REPORT = {
    "measurements": [
        {"what": "served_distance", "of": "target", "value": 0.0219, "low": 0.02, "high": 0.0238, **MEASURED},
        {"what": "served_agreement", "of": "target", "value": 1.0, "low": 1.0, "high": 1.0, **MEASURED},
    ],
    "not_measured": {"target with drafter in a server": "vllm did not load it: it ended with exit code 1"},
    "in_server": {
        "kind": "vllm",
        "version": "0.32.0",
        "arguments": ["--seed", "0"],
        "max_new_tokens": 64,
        "tie_nats": 0.25,
        "median_distance": 0.011,
        "samples": [{"row_id": "r1", "text": "a | <b>bold</b>\n\u202eline"}],
        "forms": {
            "reference": {"loaded": True, "tau": None},
            "target": {"loaded": True, "tau": 1.5},
            "target with drafter": {"loaded": False},
        },
    },
}
RATES = {
    "1": {"median": 120.0, "lowest": 100.0, "highest": 130.0},
    "8": {"median": 2_000.0, "lowest": 1_000.0, "highest": 2_100.0},
}
RECORD = {"tokens_per_second": RATES, "started_s": 36.4, "memory_mb": 3_100.0}
SPEED = {
    "in_server": {
        "forms": {"reference": RECORD, "target": RECORD | {"memory_mb": None}},
        "ratios": {"target": {"1": 1.99, "8": 0.794}},
    }
}


def test_forms_speed_and_samples():
    loads, speed, samples = server_sections(REPORT, SPEED)
    assert loads.rows == [
        ["unquantized", "loaded", "", "", "36", "3.1"],
        ["served", "loaded", "0.0219 (0.0200 to 0.0238)", "1.0000 (1.0000 to 1.0000)", "36", ""],
        ["served with its drafter", "did not load", "", "", "", ""],
    ]
    assert (
        loads.note.startswith(
            "vllm 0.32.0, started with --seed 0. served with its drafter: vllm did not load it: it ended "
            "with exit code 1. Distance"
        )
        and "(median 0.011)" in loads.note
    )
    assert speed.columns == ["model", "1 at a time", "8 at a time", "tau"]
    assert speed.rows == [
        ["unquantized", "120 (100 to 130)", "2,000 (1,000 to 2,100)", ""],
        ["served", "120 (100 to 130)", "2,000 (1,000 to 2,100)", "1.50"],
        ["served / unquantized", "1.99", "0.79", ""],
    ]
    assert samples.rows == [["r1", "a | <b>bold</b> \\u202eline"]]


def test_without_a_server_the_page_says_so_and_without_speed_it_has_no_table_of_it():
    [none] = server_sections({"measurements": []}, {})
    assert none.rows == [["served", "no server was asked for"]]
    failed = REPORT | {
        "measurements": [],
        "in_server": REPORT["in_server"] | {"forms": {"target": {"loaded": False}}, "samples": [], "version": None},
    }
    [alone] = server_sections(failed, {})
    assert alone.rows == [["served", "did not load", "", "", "", ""]] and alone.note.startswith("vllm, started")


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("report.md.j2", "| r1 | a \\| &lt;b>bold&lt;/b> \\u202eline |"),
        ("report.html.j2", ">a | &lt;b&gt;bold&lt;/b&gt; \\u202eline</td>"),
    ],
)
def test_text_of_a_model_is_text_on_the_page(template, shown):
    class Page:
        workload, about, gates, facts, charts = "tutor", "", [], None, []

        def all_sections(self):
            return [replace(section, note="") for section in server_sections(REPORT, SPEED)]

    page = render(template, summary=Page())
    assert shown in page
    if template == "report.html.j2":
        assert '<td data-column="state" class="missed">did not load</td>' in page
