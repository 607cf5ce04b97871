"""Writes the card of a preference dataset: README.md with its sources, lengths, agreement, ties, and what was left out.

    notes_and_counts = write_preference_card(directory, counts, PreferenceSettings(), {"workload": "math-tutor"})

A note is a sentence about rows that teach something else than what people prefer: one kind of verdict only, or length.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resources.composing.dataset_card import SPLITS, markdown_table, write_plain_card
from resources.composing.dataset_settings import PreferenceSettings, SourceConfidence
from resources.lake import rows, workbench

RULES = {
    "equal_answers": "both answers say the same",
    "prompts_differ": "the answers are to prompts that are rendered differently",
    "sources_disagree": "another source, or people's thumbs, call the other answer better",
    "only_white_space": "the answers differ in white space only",
    "only_length": "one answer begins with the other, or has all of its sentences and more",
    "placeholder": "a client's text in place of old answers: the same one for three prompts or more, and no answer of the log",
    "only_cut": "a client's cut: the beginning of the answer and a mark such as '…' or '[truncated]'",
    "only_masked": "a client's mask: the answer with digits or parts replaced by marks such as '***' or '[REDACTED]'",
    "chosen_refuses": "the chosen answer is a refusal",
    "rejected_refuses": "the rejected answer is a refusal, and that is the difference",
    "chosen_low_quality": "the judge rates the wanted answer below curation.min_quality",
    "contaminated": "an edited or a teacher's answer holds an evaluation item",
    "paired_by_surer_source": "the rejected answer is in a pair of a source with more confidence",
    "earlier_vote": "the same user voted again on an answer to the same prompt: the last vote counts",
    "neutral": "the verdicts on the answer cancel out, or say neither good nor bad",
}
"""What each rule leaves out, by name."""

MOST_LONGER = 0.8
"""Share of pairs whose chosen answer is the longer one above which the card warns."""
LEAST_PAIRS = 20
"""Fewer pairs say nothing about length."""


def write_preference_card(
    directory: Path, counts: Mapping[str, Any], settings: PreferenceSettings, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes README.md and returns `notes` and the counts of rows. counts: rows, unpaired, dropped, ties and agreement."""
    with workbench() as connection:
        sides = rows(connection, "composing/card/sides", file=str(directory / "train.parquet")).to_pylist()
        files = [str(directory / f"unpaired_{split}.parquet") for split in SPLITS]
        verdicts = rows(connection, "composing/card/verdicts", files=files).to_pylist()
    notes = [*_about_verdicts(verdicts), *_about_pairs(sides)]
    why = {name: field.description for name, field in SourceConfidence.model_fields.items()}
    ties = counts["ties"]
    lines = [
        *(f"**Note:** {note}.\n" for note in notes),
        "## Sources of the pairs",
        "",
        "Training pairs. Characters of the message as JSON, medians.",
        "",
        *markdown_table(
            ("reason", "pairs", "confidence", "chosen", "rejected", "chosen is longer", "because"),
            [
                [
                    each["reason"],
                    each["pairs"],
                    f"{each['confidence']:g}",
                    each["chosen"],
                    each["rejected"],
                    f"{each['longer']:z.0%}",
                    why[each["reason"]],
                ]
                for each in sides
            ],
        ),
        "## Agreement",
        "",
        f"Of {ties['comparisons']:,} comparisons of two graded answers to one prompt, {ties['ties']:,} are ties"
        f"{_share(ties['ties'], ties['comparisons'])}.",
        "",
        *markdown_table(
            ("source", "other source", "pairs of both", "agree"),
            [
                [each["one"], each["other"], each["pairs"], f"{each['agree'] / each['pairs']:z.0%}"]
                for each in counts["agreement"]
            ],
        ),
        "## Left out",
        "",
        *markdown_table(
            ("of", "rule", "rows", "why"),
            [[what, rule, count, RULES[rule]] for what, rules in counts["dropped"].items() for rule, count in rules.items()],
        ),
        "## Answers with a verdict",
        "",
        "Files `unpaired_*.parquet`. An answer of a pair is here too if it has a verdict of its own.",
        "",
        *markdown_table(
            ("split", "reason", "wanted", "not wanted", "confidence", "characters, median"),
            [
                [each[name] for name in ("split", "reason", "wanted", "unwanted", "confidence", "characters")]
                for each in verdicts
            ],
        ),
    ]
    what = "Pairs of a chosen and a rejected answer to one prompt, and answers with a verdict of their own."
    return {"notes": notes, **write_plain_card(directory, what, about, lines)}


def _share(part: int, whole: int) -> str:
    return f" ({part / whole:z.0%})" if whole else ""


def _about_verdicts(verdicts: list[dict[str, Any]]) -> list[str]:
    """The note where training rows have verdicts of one kind only."""
    wanted, unwanted = (sum(each[name] for each in verdicts if each["split"] == "train") for name in ("wanted", "unwanted"))
    if bool(wanted) == bool(unwanted):
        return []
    return [
        f"all {wanted + unwanted:,} unpaired training rows are answers that were {'' if wanted else 'not '}wanted: a loss on "
        "single answers needs both kinds"
    ]


def _about_pairs(sides: list[dict[str, Any]]) -> list[str]:
    """Notes where nothing is paired, or where length decides."""
    pairs = sum(each["pairs"] for each in sides)
    if not pairs:
        return ["there is no training pair: only losses on single answers can learn from this dataset"]
    longer = sum(each["longer"] * each["pairs"] for each in sides) / pairs
    if pairs < LEAST_PAIRS or MOST_LONGER >= longer >= 1 - MOST_LONGER:
        return []
    which = "longer" if longer > MOST_LONGER else "shorter"
    return [
        f"the {which} answer is chosen in {max(longer, 1 - longer):z.0%} of {pairs:,} training pairs: training "
        "will change the length of answers, whatever else it does"
    ]
