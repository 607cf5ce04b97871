"""What `millrace run` says at its end: rows, quality, acceptance, every missed gate with its page, the next commands."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from model_ops.evaluation.measurement import AS_LOGGED, OVER_PROMPTS, PAIRED, TARGET, Measurement
from model_ops.operations.distill_settings import StudentSettings
from model_ops.operations.sft_settings import SftSettings
from pipelines.running.outcome import INTERRUPTED, Outcome
from pipelines.status import closing
from pipelines.status.closing import print_closing
from resources.artefacts.registry import Registry
from resources.endpoints.approvals import withdraw
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.releases.gate_result import GateResult, GateVerdict
from resources.releases.release import ReleaseRef
from resources.releasing.worth import quality_sentences

RECIPE = SimpleNamespace(workload="tutor", disabled=[], base_model="tiny", trained={})
FOUND = [
    Measurement(
        what="loss_increase",
        of=TARGET,
        against="base",
        value=-0.11,
        low=-0.13,
        high=-0.09,
        n=24,
        counted="rows",
        unit="nats per token",
        method=PAIRED,
    ),
    Measurement(
        what="acceptance_length",
        of="eagle3",
        sampling=AS_LOGGED,
        value=2.9,
        low=2.6,
        high=3.1,
        n=16,
        counted="prompts",
        unit="tokens per forward",
        method=OVER_PROMPTS,
    ),
    Measurement(
        what="accuracy_gain",
        of=TARGET,
        against="base",
        on="refunds",
        value=0.1,
        low=-0.1,
        high=0.3,
        n=20,
        counted="items",
        unit="share",
        method=PAIRED,
    ),
]


@pytest.fixture
def said(tmp_path, make_release):
    """What is said about a release whose gate measured `recovery`, at 80 columns."""

    def say(recovery=0.999, steps=("evaluation_report", "release_candidate"), offered=True, code=0, width=80, failed=()):
        lake = LakeLayout.open(tmp_path / "lake")
        registry = Registry(lake, "tutor")
        if steps:
            report = {"measurements": [found.model_dump() for found in FOUND]}
            directory = make_release(lake, 1, recovery=recovery)
            measured = registry.directory(registry.current("dataset", "evaluation_report"))
            (measured / "report.json").write_text(json.dumps(report))
            (measured / "speed.json").write_text("{}")
            if offered:
                Endpoint(lake, "tutor").nominate(ReleaseRef.of(directory))
        outcome = Outcome(exit_code=code, seconds=dict.fromkeys(steps, 1.0), failed=set(failed))
        console = Console(record=True, width=width, force_terminal=True)
        print_closing(lake, RECIPE, tmp_path / "tutor.yaml", outcome, console)
        return console.export_text()

    return say


def test_a_release_that_waits_names_its_page_and_both_commands(said):
    text = said()
    told = " ".join(text.split())
    assert "held-out loss -0.110 nats per token (95 %: -0.130 to -0.090; 24 rows), against the base model" in told
    assert "eagle3: 2.90 (95 %: 2.60 to 3.10) tokens per forward pass" in told and "score on refunds +0.100" in told
    assert "gates The gate holds" in told and "waits for" in told
    assert "millrace approve " in told and "millrace serve tutor --lake" in told and "--alias candidate" in told
    assert all(len(line) <= 80 for line in text.splitlines() if "/" not in line)


def test_a_missed_gate_is_named_with_its_page_and_no_approval_is_offered(said):
    told = " ".join(said(recovery=0.5, offered=False).split())
    assert "✗ missed recovery: 0.5" in told and "where at least 0.99 is wanted" in told
    assert 'report.html, "Served model against its unquantized form"' in told
    assert "it is not offered, because 1 gate is missed; nothing is served yet" in told
    assert "millrace approve" not in told and "change its bound (release.gates.recovery)" in told
    assert "run the recipe again, which makes what changed: millrace run " in told and "tutor.yaml --lake" in told


def test_a_withdrawn_release_offers_no_approval(tmp_path, said):
    said()
    lake = LakeLayout.open(tmp_path / "lake")
    directory = next(lake.artefacts("release").glob("tutor/*/manifest.json")).parent
    withdraw(lake, directory, Actor("ana", "test"))
    told = " ".join(said(offered=False).split())
    assert "it was withdrawn, so it is not offered" in told and "millrace approve" not in told


def test_what_quantization_costs_is_said():
    kept = Measurement(what="accuracy_kept", of=TARGET, against="reference", on="all suites", value=0.76, low=0.48, high=1.04,
                       n=60, counted="items", unit="ratio")  # fmt: skip
    recovery = Measurement(what="recovery", of=TARGET, against="reference", value=0.998, low=0.997, high=0.999, n=30,
                           counted="rows", unit="ratio")  # fmt: skip
    divergence = recovery.model_copy(update={"what": "divergence", "value": 0.01})
    said = dict(quality_sentences([kept, recovery, divergence]))
    assert said["quantized"] == (
        "keeps 0.9980 (95 %: 0.9970 to 0.9990) of the unquantized model's likelihood of answers, "
        "and 0.760 (95 %: 0.480 to 1.040) of the suites' score on 60 items"
    )
    assert "quantized" not in dict(quality_sentences([recovery]))


def test_gates_are_counted_as_on_pages_and_nothing_is_minus_zero():
    empty = GateResult(name="loss_above_champion", wanted=0.02, measured=None, passed=True, nothing_to_compare=True)
    held = GateResult(name="recovery", wanted=0.9, measured=0.95, passed=True)
    assert [line.text for line in closing._gates(Path(), [held, empty])] == [GateVerdict.of([held, empty]).sentence]
    assert "nothing to compare with yet: loss above champion" in GateVerdict.of([held, empty]).sentence
    told = [
        text
        for _, text in quality_sentences(
            [found.model_copy(update={"value": -1e-9, "low": -1e-9, "high": 0.1}) for found in FOUND if found.against]
        )
    ]
    assert told and not [text for text in told if "-0.0" in text]


def test_a_step_that_failed_does_not_show_what_an_earlier_run_left(said):
    told = " ".join(said(code=1, failed=["release_candidate"]).split())
    assert "quality" in told and "waits for" not in told and "gates" not in told and "goes on from what is finished" in told
    assert "quality" not in said(code=1, failed=["release_candidate", "evaluation_report"])


@pytest.mark.parametrize(
    ("code", "how"), [(0, "goes on to a release"), (1, "once that is mended"), (INTERRUPTED, "what is finished")]
)
def test_a_run_that_came_to_no_release_says_how_to_go_on(said, code, how):
    told = " ".join(said(steps=(), code=code).split())
    assert "next millrace run " in told and "tutor.yaml" in told and how in told


@pytest.mark.parametrize(("steps", "base", "warned"), [(4, "org/model", True), (50, "org/model", False), (4, "tiny", False)])
def test_a_training_of_few_steps_is_named_with_the_key_to_change(tmp_path, steps, base, warned):
    made = SimpleNamespace(metrics={"steps": steps})
    registry = SimpleNamespace(current=lambda kind, name: {"sft_model": made}[name])
    recipe = SimpleNamespace(base_model=base, trained={"sft": SftSettings(epochs=1), "student": StudentSettings()})
    found = list(closing._few_steps(registry, recipe, Outcome(seconds={"sft_model": 1.0})))
    said = ["sft_model took 4 steps, too few to learn from: set sft.epochs to 13"]
    assert [line.text for line in found] == (said if warned else [])
