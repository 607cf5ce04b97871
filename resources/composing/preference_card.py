"""Writes the card of a preference dataset: its sources, lengths, agreement, ties, what was left out, and notes on rows that
teach something else than what people prefer: one kind of verdict only, or length.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resources.composing.dataset_card import SPLITS, card_text, write_plain_card
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
    text = card_text(
        "preferences",
        notes=notes,
        sides=[
            (reason, each["pairs"], f"{each['confidence']:g}", *lengths, f"{each['longer']:z.0%}", why[reason])
            for each in sides
            for reason, lengths in [(each["reason"], (each["chosen"], each["rejected"]))]
        ],
        ties=ties,
        share_of_ties=f"{ties['ties'] / ties['comparisons']:z.0%}" if ties["comparisons"] else "",
        agreement=[
            (each["one"], each["other"], each["pairs"], f"{each['agree'] / each['pairs']:z.0%}") for each in counts["agreement"]
        ],
        left_out=[(what, rule, n, RULES[rule]) for what, rules in counts["dropped"].items() for rule, n in rules.items()],
        verdicts=[
            [each[name] for name in ("split", "reason", "wanted", "unwanted", "confidence", "characters")] for each in verdicts
        ],
    )
    what = "Pairs of a chosen and a rejected answer to one prompt, and answers with a verdict of their own."
    return {"notes": notes, **write_plain_card(directory, what, about, [text.removesuffix("\n")])}


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
