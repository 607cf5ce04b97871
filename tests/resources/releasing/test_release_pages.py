"""Pages of a release: model card, report and approval page say the verdict first, align figures, and show what was measured."""

import json
import re
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import pytest
from huggingface_hub import ModelCard

from model_ops.evaluation.measurement import HELD_OUT, PAIRED, Measurement, What
from model_ops.speculators.serving import DrafterServing
from resources.curating.record_counts import RecordCounts
from resources.digests.code import PACKAGES
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import read_manifest
from resources.releases.drafting_decision import ReportSection
from resources.releases.gate_result import GateResult, GateVerdict
from resources.releases.release import read_release
from resources.releasing.approval_page import write_approval_page
from resources.releasing.champion import Champion
from resources.releasing.charts import Bar, bars, lines
from resources.releasing.model_card import NAMES, render
from resources.releasing.release_facts import facts_of, flat, gates_by_name, short_name
from resources.releasing.server_sections import passed_section, report_charts
from resources.releasing.summary import Summary

ABOUT = {"of": "target", "against": "reference", "on": HELD_OUT, "rows": 300}
HELD = GateResult(name="recovery", wanted=0.99, measured=0.998, low=0.996, high=0.999, passed=True, **ABOUT)
ABOUT = {"of": "eagle3", "on": HELD_OUT, "sampling": "temperature 1", "rows": 200, "counted": "prompts", "judged_by": "low"}
MISSED = GateResult(name="acceptance_length", wanted=2.5, measured=2.1, low=2.0, high=2.2, passed=False, **ABOUT)
EMPTY = GateResult(
    name="loss_above_champion", wanted=0.02, measured=None, passed=True, nothing_to_compare=True, reason="none yet"
)

ROOT = Path(__file__).parents[3]


def measured(what, value, of="target", against="", on=HELD_OUT, sampling="", **more):
    about = {"what": what, "of": of, "against": against, "on": on, "sampling": sampling, "value": value}
    counts = {"low": value - 0.1, "high": value + 0.1, "n": 300, "counted": "rows", "unit": "", "method": PAIRED}
    return Measurement(**about | counts | more)


MEASURED = [
    measured("loss", 1.5),
    measured("loss", 1.9, of="base"),
    measured("loss", 1.6, of="champion"),
    measured("loss_increase", -0.1, against="champion"),
    measured("recovery", 0.998, against="reference"),
    measured("acceptance_length", 2.1, of="eagle3", sampling="temperature 1"),
    measured("acceptance_length", 1.2, of="ngram", sampling="temperature 1"),
    measured("accuracy", 0.75, on="gsm8k", sampling="greedy"),
    measured("accuracy", 0.7, of="champion", on="gsm8k", sampling="greedy"),
    measured("accuracy_gain", 0.05, against="champion", on="gsm8k", sampling="greedy", counted="items"),
]
SHAPES = {
    "<b>ask-a-long-word#09775227": {"prompts": 9, "tau": 2.2, "tau_low": 2.0, "tau_high": 2.4},
    "code": {"prompts": 5, "tau": 2.9, "tau_low": 2.5, "tau_high": 3.3},
}
DRAFTED = {"sampling": "as logged", "num_speculative_tokens": 3, "looping_share": 0.0, "prompts": 200}
DRAFTED |= {"accepted_by_position": [0.7, 0.4, 0.2], "tau_by": {"prompt_shape": SHAPES}}
ACCEPTANCE = [
    {**DRAFTED, "drafter": "none", "tau": 1.0, "tau_low": 1.0, "tau_high": 1.0},
    {**DRAFTED, "drafter": "eagle3", "tau": 2.3, "tau_low": 2.1, "tau_high": 2.5},
]
RATE = {"median": 100.0, "lowest": 90.0, "highest": 110.0, "p50_s": 0.2, "p99_s": 0.31}
SERVED = {"tokens_per_second": {"1": RATE, "8": RATE | {"median": 400.0}}, "started_s": 30.0, "memory_mb": 900.0}
SPEED = {"in_server": {"forms": {"target": SERVED}, "ratios": {}}}
BESIDE = {"against": "champion", "rows": 40, "days": 7, "since": "2026-06-13T00:00:00+00:00", "worse": 1, "better": 1}
BESIDE |= {"loss_target": 1.5, "loss_other": 1.6, "increase": -0.1, "low": -0.12, "high": -0.08}
REPORT = {
    "settings": {"num_speculative_tokens": 3},
    "measurements": [each.model_dump() for each in MEASURED],
    "not_measured": {},
    "acceptance": ACCEPTANCE,
    "tasks": {"gsm8k": {}},
    "side_by_side": BESIDE,
    "same_directory": {"target": "target", "champion": "champion", "base": "base"},
}
ROW = {"change": 0.7, "target_loss": 2.0, "champion_loss": 1.3, "tokens": 12, "ts": "2026-06-17T10:00:00+00:00"}
ROW |= {"logged": "Four.", "target": "Five.", "champion": "Four!"}
ROW["prompt"] = [{"role": "user", "text": "What is <b>two</b> and two?"}]


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


@pytest.fixture
def page(lake, make_release, tmp_path):
    """summary, the release, and a folder to write into; release 1 is the champion."""
    champion, directory = make_release(lake, 1, drafts=True), make_release(lake, 2, drafts=True)
    release = read_release(directory)
    served = [read_manifest(lake.root / part.path) for part in release.parts]
    facts = facts_of(lake, release, directory.name, served, champion.name)
    summary = Summary(
        workload="tutor",
        records=RecordCounts(read=5, rows=4, dropped={"clean: error": 1}, quarantined={}),
        dataset={},
        evaluation=deepcopy(REPORT),
        models={},
        has_drafter=True,
        serving=DrafterServing("eagle3"),
        gates=[HELD, MISSED, EMPTY],
        release=directory.name,
        measured_at=datetime(2026, 6, 20, tzinfo=UTC),
        speed=SPEED,
        facts=facts,
    )
    out = tmp_path / "out"
    out.mkdir()
    return summary, release, champion, out


def test_the_verdict_counts_gates_and_names_what_is_missed():
    assert GateVerdict.of([HELD, HELD, EMPTY]).sentence == "All 2 gates hold; nothing to compare with yet: loss above champion"
    lost = GateVerdict.of([HELD, MISSED, EMPTY])
    assert not lost.holds
    assert lost.sentence == "1 of 2 gates is missed: acceptance length; nothing to compare with yet: loss above champion"
    assert GateVerdict.of([HELD]).sentence == "The gate holds" and GateVerdict.of([]).sentence.startswith("No gate")
    assert GateVerdict.of([EMPTY]).sentence == "No gate was checked; nothing to compare with yet: loss above champion"


def test_a_gate_without_a_comparison_is_not_told_as_not_measured(page):
    summary, _, _, _ = page
    gates = summary.sections()[0]
    assert gates.rows[-1][:3] == ["loss above champion", "nothing to compare", "-"] and gates.rows[-1][-1] == "none yet"
    assert "not measured" not in gates.note


def test_beside_a_score_stand_what_is_solved_and_what_was_cut(page):
    summary, _, _, _ = page
    about = {"on": "gsm8k", "sampling": "sampled", "n": 100, "counted": "items", "unit": "share"}
    shares = {"accuracy": 0.4, "solved": 0.7, "cut": 0.05}
    summary.evaluation["measurements"] = [
        *(Measurement(what=what, of="target", value=value, **about).model_dump() for what, value in shares.items()),
        Measurement(what="accuracy_gain", of="target", against="base", value=0.1, **about).model_dump(),
    ]
    score, change = next(section.rows for section in summary.sections() if section.title == "Evaluation suites")
    assert score == ["gsm8k", "target", "sampled", "0.400", "", "0.700", "0.050", "100"]
    assert change == ["gsm8k", "target - base", "sampled", "0.100", "", "", "", "100"]


def test_a_figure_that_rounds_to_nothing_has_no_sign():
    gate = HELD.model_copy(update={"measured": -0.00001, "low": -0.00002, "high": 0.00001})
    assert gate.interval_text == "0.0000 to 0.0000"
    assert "-0.00 " not in bars("a", [Bar("b", -0.0001)], "tokens", 2)
    unsigned = [
        f"{path}: {found}"
        for folder in PACKAGES
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".j2")
        for found in re.findall(r"\{[^{}]*:\+?,?\.\d%\}", path.read_text(encoding="utf-8"))
    ]
    assert unsigned == [], "write {share:z.1%}: the z leaves out the sign of a nought"


def test_each_chart_stands_under_the_heading_that_it_is_about(page):
    summary, _, _, out = page
    replace(summary, speed=SPEED).write(out)
    sections = {each.split("</h2>")[0]: each for each in (out / "report.html").read_text().split("<h2>")[1:]}
    charts = {title: re.findall(r"<figcaption><b>(.*?)</b>", text) for title, text in sections.items()}
    accepted = ["Acceptance length", "Acceptance by position", "Acceptance length of eagle3 by shape of the prompt"]
    assert {title: found for title, found in charts.items() if found} == {
        "Acceptance length": accepted,
        "In a real server": ["Tokens/s in a real server", "Latency in a real server"],
    }


def test_a_gate_is_one_row_of_a_comparison_and_a_digest_is_no_setting():
    early = [EMPTY, HELD]
    measured_now = EMPTY.model_copy(update={"measured": -0.00001, "nothing_to_compare": False, "rows": 24})
    late = [measured_now, HELD.model_copy(update={"rows": 31})]
    assert list(gates_by_name(early)) == list(gates_by_name(late)) == ["loss above champion", "recovery"]
    said = [gates_by_name(gates)["loss above champion"] for gates in (early, late)]
    assert said == ["nothing to compare with", "0.0000"]
    assert flat({"revision": "0a1b2c3d4e5f"}, "base_model") == {"base_model.revision": "0a1b2c3d4e5f"}
    given = {"rate": 0.1, "parent": "0a1b2c3d4e5f", "of": {"digest": "f" * 63 + "0", "steps": 123456789012}}
    assert flat(given, "sft_model") == {"sft_model.rate": "0.1", "sft_model.of.steps": "123456789012"}


def test_the_card_is_one_that_the_hub_reads(page):
    summary, _, _, out = page
    summary.write(out)
    card = ModelCard((out / "README.md").read_text())
    data = card.data.to_dict()
    assert data["pipeline_tag"] == "text-generation" and {"millrace", "speculative-decoding", "eagle3"} <= set(data["tags"])
    results = {(each.metric_type, each.dataset_name, each.metric_name): each for each in card.data.eval_results}
    tau = results["acceptance_length", HELD_OUT, "Acceptance length, temperature 1"]
    assert tau.metric_value == 2.1 and tau.metric_args["num_speculative_tokens"] == 2 and tau.metric_args["low_95"] == 2.0
    assert results["accuracy", "gsm8k", "Accuracy, greedy"].metric_value == 0.75
    assert {each.metric_value for each in results.values()} == {1.5, -0.1, 0.998, 2.1, 0.75, 0.05}  # of the release alone


def test_the_card_says_the_verdict_first_and_shows_no_row(page):
    summary, _, champion, out = page
    summary.evaluation["against_reference"] = {"worst_rows": [{"row_id": "r1-of-a-user", "divergence": 0.1, "tokens": 3}]}
    both = (measured("divergence", 0.1, against="reference"), measured("agreement", 0.9, against="reference"))
    summary.evaluation["measurements"] += [each.model_dump() for each in both]
    text = ModelCard(_written(summary, out)).text
    order = [
        "**1 of 2 gates is missed: acceptance length; nothing to compare with yet: loss above champion.**",
        "measured on 2026-06-20",
        "## Gates",
        "## What changed since the champion",
        "## Acceptance length",
        "## Made from",
        "## Serve it",
    ]
    places = [text.index(each) for each in order]
    assert places == sorted(places)
    assert "eagle3, held-out sessions, temperature 1, 200 prompts, K 3" in text and f"champion {champion.name}" in text
    assert "| at least 2.5 |" in text and "| 2.0000 to 2.2000 |" in text
    assert "r1-of-a-user" not in text


def _written(summary, out):
    summary.write(out)
    return (out / "README.md").read_text()


def test_base_licence_and_languages_are_metadata(page):
    summary, _, _, out = page
    facts = replace(
        summary.facts,
        base_models=["Qwen/Qwen3-8B"],
        licences={"Qwen/Qwen3-8B": "Apache-2.0"},
        languages=["en", "de"],
        datasets=["tutor/sft_dataset"],
        scheme="w8a8",
        relation="quantized",
    )
    data = ModelCard(_written(replace(summary, facts=facts), out)).data.to_dict()
    assert (data["base_model"], data["license"], data["language"]) == (["Qwen/Qwen3-8B"], "apache-2.0", ["en", "de"])
    assert data["base_model_relation"] == "quantized" and data["datasets"] == ["tutor/sft_dataset"]
    several = replace(facts, licences={"a": "apache-2.0", "b": "Company terms"})
    data = ModelCard(_written(replace(summary, facts=several), out)).data.to_dict()
    assert (data["license"], data["license_name"]) == ("other", "apache-2.0, Company terms")
    assert short_name("/home/ann/models/base") == "base" and short_name("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"


def test_the_report_has_the_verdict_before_gates_and_charts_after_them(page):
    summary, _, _, out = page
    summary.write(out)
    text = (out / "report.html").read_text()
    places = [text.index(each) for each in ('class="verdict bad"', "<h2>Gates", "<h2>What changed", "<svg", "<h2>Made from")]
    assert places == sorted(places) and text.count("<svg") == 5
    assert "Latency in a real server" in text and "&lt;b&gt;ask-a-long-word#09775227 (9)" in text and "<b>ask" not in text
    assert '<td data-column="measured" class="figure">0.9980</td>' in text and '<th class="figure">measured</th>' in text
    assert set(re.findall(r"(?:src|href)=\"(.*?)\"", text)) <= {"#answers", "approval.html#answers"} and "<script" not in text
    markdown = (out / "report.md").read_text()
    assert "|---|---|---:|---:|---|---|" in markdown


def test_charts_have_only_what_was_measured():
    assert report_charts({}, {}, {}) == {}
    assert len(report_charts({"acceptance": ACCEPTANCE[:1]}, {}, {"base": 1.0})) == 1
    early = {"in_server": {"forms": {"target": {"tokens_per_second": {"1": {"median": 100.0}}}}}}
    assert len(report_charts({}, early, {})) == 1  # an earlier report has no latencies


def test_charts_escape_names_and_bear_any_number():
    made = bars("a & b", [Bar("<script>" + "x" * 40, 0.0), Bar("big", 1e6, 1e5, 2e6)], "tokens") + lines(
        "c", "y by x", {"<s>": [(1, 0.0), (2, 0.00123)], "other": [(1, 0.0)]}
    )
    assert "<script>" not in made and "a &amp; b" in made and "nan" not in made and "\u2026" in made
    assert lines("one", "y by x", {"only": [(4, 2.0)]}).count("<circle") == 1
    assert ">0.1<" in lines("small", "y by x", {"only": [(4, 0.05258)]}), "a longer number is cut by the page's edge"


@pytest.mark.parametrize(
    ("cells", "figures"),
    [
        (["0.9980", "-1,234.5", "", "not measured"], True),
        (["1.2 to 3.4", "12 (10 to 14)"], True),
        (["0.35 MB", "5 %", "-"], True),
        (["1.00 0.98"], False),
        (["at least 0.95"], False),
        (["", ""], False),
        (["8b"], False),
    ],
)
def test_columns_of_figures_are_aligned(cells, figures):
    assert ReportSection("t", ["c"], [[cell] for cell in cells]).is_figure == [figures]


def approval(page, lake, rows, champion=True, report=REPORT, **unlike):
    """unlike: what of the champion is not compared."""
    summary, release, former, out = page
    (out / "report.json").write_text(json.dumps(report))
    (out / "speed.json").write_text(json.dumps(SPEED))
    (out / "side_by_side.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_approval_page(out, lake, summary, release, out, Champion(former.name, **unlike) if champion else None)
    return (out / "approval.html").read_text()


def test_the_approval_page_compares_candidate_and_champion(page, lake):
    rows = [ROW | {"row_id": "r1", "kind": "regression"}, ROW | {"row_id": "r2", "kind": "gain", "change": -0.4}]
    text = approval(page, lake, rows)
    order = [
        'class="verdict bad"',
        "against champion",
        "<h2>Gates",
        "<h2>Scores",
        "<h2>Cost, size",
        "<h2>What changed",
        "2 held-out prompts, worst first",
    ]
    places = [text.index(each) for each in order]
    assert places == sorted(places)
    better = "the release predicts 1 better and 1 worse than the champion by at least 0.01"
    assert f"On the last 7 days of held-out traffic (40 rows), {better}" in text
    assert "-0.1000 (-0.1200 to -0.0800)" in text and "gsm8k, greedy" in text and "0.0500 (-0.0500 to 0.1500)" in text
    # 2.50: 1,000 / 400
    assert "2.3000 (2.1000 to 2.5000)" in text and "latency p99 (s), served, 8 at a time" in text and "2.50" in text
    assert "rows learnt and erased since" in text and "+0.7000" in text and "Five." in text and "Four!" in text
    assert "What is &lt;b&gt;two&lt;/b&gt; and two?" in text and "<b>two" not in text
    assert set(re.findall(r"(?:src|href)=\"(.*?)\"", text)) <= {"#answers", "approval.html#answers"} and "<script" not in text


def test_every_measurement_has_a_name_on_the_model_card():
    assert NAMES.keys() == {*get_args(What)}


def test_pairs_that_preference_training_changed_are_shown_worst_first(page, lake):
    sides = {"chosen": "Four.", "rejected": "Five?", "target": "It is <i>four</i>.", "parent": "Six"}
    prompt = [{"role": "user", "text": "Two and two?"}]
    lines = [{"row_id": f"pair:{i}", "change": i - 0.5, "reason": "edited", "prompt": prompt, **sides} for i in range(2)]
    (page[3] / "preference_pairs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text = approval(page, lake, [])
    (page[3] / "preference_pairs.jsonl").unlink()
    assert text.index("-0.5000") < text.index("+0.5000") and "2 held-out pairs" in text
    assert "It is &lt;i&gt;four" in text and text.count("Five?") == 2 and "held-out pairs" not in approval(page, lake, [])


def test_passed_answers_that_say_nothing_are_shown_and_who_graded_the_training(page, lake):
    line = {"row_id": "p1", "prompt": "Two and <b>two</b>?", "answer": "Hope this helps.", "gain": -0.01, "given": -3.4}
    (page[3] / "passed_answers.jsonl").write_text(json.dumps(line) + "\n")
    text = approval(page, lake, [])
    (page[3] / "passed_answers.jsonl").unlink()
    assert "1 answer that passed the verifier, least about the prompt first" in text
    assert "Hope this helps." in text and "<b>two" not in text
    found = {"passed": 12, "scored": 12, "is_trained_on": True, "least": [["p1", -0.01]]}
    [same] = passed_section({"passed_answers": found})
    assert same.rows == [["p1", "-0.010"]] and same.shows_rows
    assert "rewarded by the same verifier, so rft_gain cannot see an answer that only pleases it" in same.note
    [other] = passed_section({"passed_answers": found | {"is_trained_on": False}})
    assert "same verifier" not in other.note and passed_section({}) == []


def test_the_first_sentence_of_every_page_says_whether_it_is_worth_serving(page, lake):
    summary = replace(page[0], worth="No gain over its base can be shown.")
    for name in ("report.html.j2", "report.md.j2"):
        text = render(name, summary=summary)
        assert 0 < text.index(summary.worth) < text.index(summary.verdict.sentence)
        assert name == "report.md.j2" or 'class="verdict plain">No gain' in text
    few = GateResult(name="accuracy_kept", wanted=0.99, measured=0.76, low=0.48, high=1.04, passed=True, judged_by="high")
    text = render("report.html.j2", summary=replace(page[0], gates=[HELD, few]))
    assert 'class="verdict plain">The other 1 gate holds; too few items to tell: accuracy kept.' in text
    assert ">too few to tell</td>" in text and gates_by_name([few])["accuracy kept"].endswith("too few to tell")


def test_another_drafter_of_the_same_target_is_compared_by_its_acceptance_alone(page, lake):
    shared = {"sampling": "as logged", "n": 40, "counted": "prompts"}
    lengths = [
        {"what": "acceptance_length", "of": name, "value": tau, "unit": "tokens per forward", **shared}
        for name, tau in (("champion", 1.71), ("eagle3", 1.92))
    ]
    gain = {"what": "acceptance_gain", "of": "eagle3", "against": "champion", "unit": "share", **shared}
    gain |= {"value": 0.1228, "low": 0.08, "high": 0.17}
    report = {key: value for key, value in REPORT.items() if key != "side_by_side"} | {"measurements": [*lengths, gain]}
    text = approval(page, lake, [], report=report, no_target="the champion has the same target")
    cells = re.findall(r"<td[^>]*>(.*?)</td>", text[text.index("<h2>Scores") : text.index("<h2>Cost, size")])
    assert cells == [
        "acceptance length, as logged, both drafters on this release&#39;s target (tokens per forward; share)",
        "1.710",
        "1.920",
        "0.1228 (0.0800 to 0.1700)",
        "40 prompts",
    ]
    # one figure of the champion's
    assert "<b>acceptance length (tokens" not in text and text.count(">acceptance length, ") == 1
    assert "Losses and answers are not compared: the champion has the same target." in text and "0 held-out prompts" in text


def test_a_first_release_has_answers_beside_its_bases(page, lake):
    prompt = [{"role": "system", "text": "Be brief."}, {"role": "user", "text": "word " * 200}]
    row = {**ROW, "kind": "gain", "base_loss": 2.5, "base": "<i>base</i>", "marks": {"target": "repeats itself"}}
    rows = [{**row, "row_id": f"r{at}", "change": at / -10, "prompt": prompt} for at in range(20)]
    beside = {"against": "base", "rows": 40, "days": 7, "since": None, "worse": 1, "better": 39}
    beside |= {"loss_target": 1.5, "loss_other": 1.6}
    text = approval(page, lake, rows, champion=False, report=REPORT | {"side_by_side": beside})
    for words in (
        "No champion served before this release.",
        "20 held-out prompts, worst first",
        "than its base does (above 0: worse)",
        "better and 1 worse than its base by at least 0.01 nats per token.",
    ):
        assert words in text
    assert "largest gains" not in text and "last week" not in text
    assert text.count("&lt;i&gt;base&lt;/i&gt;") == 20 and "<i>base" not in text and text.count("repeats itself</b>") == 20
    assert text.count("all 1,000 characters") == 20 and text.count("1 earlier message</summary>") == 20  # long texts fold
    assert text.index("row r0<") < text.index("row r1<") < text.index("row r19<")


def test_without_held_out_rows_the_page_says_so(page, lake):
    report = {key: value for key, value in REPORT.items() if key != "side_by_side"}
    text = approval(page, lake, [], champion=False, report=report)
    assert "No champion served before this release." in text and "the evaluation report keeps no held-out row" in text


def test_what_cannot_be_seen_in_an_answer_is_shown(page, lake):
    text = approval(page, lake, [ROW | {"row_id": "r1", "kind": "regression", "target": "a\u202eb\nc"}])
    assert "\\u202e" in text and "\u202e" not in text and "b\nc" in text
