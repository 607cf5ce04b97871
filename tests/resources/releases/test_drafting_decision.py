"""What a release drafts with: from an evaluation's files, by the recipe's word, and what the release holds and shows of it."""

import json

import pytest

from model_ops.drafting.drafting_choice import DraftingChoice
from model_ops.drafting.drafts import NO_DRAFTING, Drafting, with_drafter
from model_ops.evaluation.measurement import TARGET, WITH_DRAFTER
from resources.releases.drafting_decision import decide_drafting, drafting_sections, form_of, write_choice
from resources.releases.settings import DraftingSettings

NGRAM = Drafting(method="ngram", num_speculative_tokens=5)
REPORT = {
    "measurements": [],
    "acceptance": [
        {"drafter": "ngram", "sampling": "as logged", "num_speculative_tokens": 5, "tau": 1.4},
        {
            "drafter": "eagle3",
            "sampling": "greedy",
            "num_speculative_tokens": 3,
            "tau": 2.9,
            "tau_low": 2.8,
            "accepted_by_position": [0.9, 0.6, 0.4],
        },
        {
            "drafter": "eagle3",
            "sampling": "as logged",
            "num_speculative_tokens": 3,
            "tau": 1.75,
            "tau_low": 1.6,
            "accepted_by_position": [0.5, 0.2, 0.05],
        },
    ],
    "lookups": {"ngram": {"num_speculative_tokens": 5, "tau": 1.9, "answers": 9, "taus": {"1": 1.2, "5": 1.9}}},
    "not_measured": {"target with suffix lookup, K = 12 in a server": "no arctic", "accuracy": "no items"},
    "in_server": {"kind": "vllm", "version": "0.32.0", "forms": {}},
}


def form(drafting, tau, **speeds):
    rates = {name[1:]: {"median": speed, "p99_s": 100 / speed} for name, speed in speeds.items()}
    greedy = {at: {"median": 1.0, "p99_s": 1.0} for at in rates}
    return {
        "drafting": drafting.model_dump(mode="json"),
        "tokens_per_second": greedy,
        "as_logged": {"rates": rates, "tau": tau},
    }


SPEED = {
    "in_server": {
        "forms": {
            "reference": {**form(NO_DRAFTING, None, c1=900), "as_logged": None},
            TARGET: form(NO_DRAFTING, None, c1=100, c8=400),
            WITH_DRAFTER: form(with_drafter(3), 1.75, c1=150, c8=300),
            f"{TARGET} with {NGRAM.label}": form(NGRAM, 1.4, c1=110, c8=390),
        }
    }
}


def decide(report=REPORT, speed=SPEED, drafter="eagle3", **settings):
    return decide_drafting(
        DraftingSettings(**settings), json.loads(json.dumps(report)), json.loads(json.dumps(speed)), drafter, 3
    )


@pytest.mark.parametrize(("concurrency", "chosen"), [([1], with_drafter(3)), ([8], NO_DRAFTING)])
def test_the_server_decides_at_the_recipes_concurrency(concurrency, chosen):
    choice = decide(concurrency=concurrency)
    assert (choice.drafting, choice.decided_by, choice.server) == (chosen, "server", "vllm 0.32.0")
    assert choice.concurrencies == concurrency and len(choice.curve) == 6
    assert choice.not_measured == {"target with suffix lookup, K = 12": "no arctic"}
    assert [(each.method, each.num_speculative_tokens) for each in choice.replayed] == [
        ("ngram", 5),
        ("drafter", 1),
        ("drafter", 2),
        ("drafter", 3),
    ]
    assert [each.tau for each in choice.replayed] == pytest.approx([1.4, 1.5, 1.7, 1.75])  # as the table of acceptance says


def test_without_a_server_acceptance_decides_and_the_release_says_so():
    without = {name: value for name, value in REPORT.items() if name != "in_server"}
    choice = decide(without, {})
    assert (choice.drafting, choice.decided_by) == (with_drafter(3), "replay") and "no server was asked" in choice.reason
    assert choice.curve == [] and choice.server == ""
    worse = json.loads(json.dumps(without))
    worse["acceptance"][2]["tau_low"] = 1.3
    assert decide(worse, {}).drafting == NGRAM
    gains = {
        "measurements": [
            {"what": "acceptance_gain", "of": "eagle3", "sampling": "greedy", "low": -0.2, "against": ""},
            {"what": "acceptance_gain", "of": "eagle3", "sampling": "as logged", "low": 0.03, "against": ""},
        ]
    }
    assert decide({**worse, **gains}, {}).drafting == with_drafter(3)
    assert decide({"acceptance": [], "measurements": []}, {}, drafter=None).drafting == NO_DRAFTING


def test_a_server_that_did_not_serve_the_model_decides_nothing():
    failed = {**REPORT, "not_measured": {"target in a server": "vllm did not load it"}}
    choice = decide(failed, {})
    assert choice.decided_by == "replay" and choice.reason.endswith(
        "vllm was asked and did not serve the model: vllm did not load it"
    )


@pytest.mark.parametrize(
    ("choose", "drafter", "drafting"),
    [("drafter", "eagle3", with_drafter(3)), ("none", "eagle3", NO_DRAFTING), ("drafter", None, NO_DRAFTING)],
)
def test_the_recipe_can_decide_and_the_measurements_stay(choose, drafter, drafting):
    choice = decide(drafter=drafter, choose=choose, concurrency=[8])
    assert (choice.drafting, choice.decided_by) == (drafting, "recipe") and len(choice.curve) == 6
    assert f"release.drafting.choose: {choose}" in choice.reason
    assert ("Measured, it would be no drafting" in choice.reason) == (drafting == with_drafter(3))


def test_forms_of_the_evaluation_by_drafting():
    assert form_of(NO_DRAFTING, 3) == TARGET and form_of(with_drafter(3), 3) == WITH_DRAFTER
    assert form_of(with_drafter(2), 3) == "target with drafter, K = 2" and form_of(NGRAM, 3) in SPEED["in_server"]["forms"]


def test_the_decision_is_written_and_shown(tmp_path):
    choice = decide(concurrency=[1])
    write_choice(tmp_path, choice)
    assert DraftingChoice.model_validate_json((tmp_path / "drafting.json").read_text()) == choice
    [section] = drafting_sections(choice)
    assert section.rows[2] == ["drafter, K = 3 (served)", "3", "1", "150", "1.50", "0.67", "0.67", "1.75", "1.17"]
    assert (
        "Drafter, K = 3: 1.50 times" in section.note
        and "Not measured: target with suffix lookup, K = 12: no arctic." in section.note
    )
    assert "drafter, K = 3 pays up to about" in section.note
    [replayed] = drafting_sections(decide({**REPORT, "in_server": {}}, {}))
    assert replayed.columns == ["drafting", "K", "tau"] and replayed.rows == [
        ["ngram", "5", "1.400"],
        ["drafter", "1", "1.500"],
        ["drafter", "2", "1.700"],
        ["drafter (served)", "3", "1.750"],
    ]
    [nothing] = drafting_sections(decide({"measurements": []}, {}, drafter=None))
    assert nothing.rows == [["no drafting", "", ""]]
