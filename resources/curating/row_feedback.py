"""Joins feedback with rows: one number for each interaction. Values in the table are as logged; here alone is decided which are
good: by the rules, else by the name's words (resources.records.good_end) and by all its numbers."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import duckdb
import pyarrow as pa
import yaml

from resources.curating.curation import FeedbackRules
from resources.lake import Tables, attach_slice, rows, run, workbench
from resources.reading import attach_feedback_ids
from resources.records import SAID, good_end, is_known, visible

MOST_OF_SCALE = 100
"""The largest value of a scale; above it are counts."""
_WORDS = pa.Table.from_pylist([{"word": word, "kind": kind, "side": side} for word, (kind, side) in SAID.items()])


class FeedbackScale(NamedTuple):
    """Which values of a name are good."""

    end_of_good: int
    """1: more is better; -1: less; 0: nobody knows, and they count for nothing."""
    least: float | None = None
    most: float | None = None
    """The last good value at the other end; without both, values count as they are, and where less is better for nothing."""


def attach_row_feedback(connection: duckdb.DuckDBPyConnection, rules: FeedbackRules) -> None:
    """Creates the table `row_feedback` (interaction_id, value) from the views `feedback` (of all days) and `conversations`."""
    attach_graded_feedback(connection, _scales(feedback_by_name(connection), rules))
    attach_feedback_ids(connection)
    run(connection, "curating/clean/row_feedback")


def attach_graded_feedback(connection: duckdb.DuckDBPyConnection, scales: Mapping[str, FeedbackScale]) -> None:
    """Creates the view `graded_feedback` from the view `feedback`."""
    connection.register("feedback_words", _WORDS)
    columns = {"name": pa.string(), "end_of_good": pa.int64(), "least": pa.float64(), "most": pa.float64()}
    scale_rows = [{"name": name, **scale._asdict()} for name, scale in scales.items()]
    connection.register("feedback_scales", pa.Table.from_pylist(scale_rows, schema=pa.schema(columns)))
    run(connection, "reading/ties/feedback_by_id")
    run(connection, "curating/clean/graded_feedback")


def feedback_by_name(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Counts and range of each name in the view `feedback`, most records first."""
    connection.register("feedback_words", _WORDS)
    return rows(connection, "curating/clean/feedback_by_name").to_pylist()


def feedback_scales(tables: Tables, workload: str, rules: FeedbackRules) -> dict[str, FeedbackScale]:
    return _scales(_names_of(tables, workload), rules)


def _names_of(tables: Tables, workload: str) -> list[dict[str, Any]]:
    with workbench() as connection:
        attach_slice(connection, tables, "feedback", workload)
        return feedback_by_name(connection)


def _scales(names: Iterable[Mapping[str, Any]], rules: FeedbackRules) -> dict[str, FeedbackScale]:
    scales = {each["name"]: _scale(each, rules) for each in names}
    return {name: scale for name, scale in scales.items() if scale != FeedbackScale(1)}


def _scale(name_counts: Mapping[str, Any], rules: FeedbackRules) -> FeedbackScale:
    name = name_counts["name"]
    if name in rules.least or name in rules.most:
        return FeedbackScale(1 if name in rules.least else -1, rules.least.get(name), rules.most.get(name))
    end = _end(name_counts)
    # of 0 and 1 alone, one is the thumb down
    return FeedbackScale(
        end, 1.0 if name_counts["is_flag"] and end > 0 else None, 0.0 if name_counts["is_flag"] and end < 0 else None
    )


def _end(name_counts: Mapping[str, Any]) -> int:
    """`good_end`; the numbers of a data set's labels are a thumb or a class."""
    if _is_label(name_counts):
        return int(name_counts["is_flag"])
    return good_end(name_counts["name"] or "")


def _is_label(name_counts: Mapping[str, Any]) -> bool:
    return (name_counts["name"] or "").startswith("label of ")


def guessed_bound(name_counts: Mapping[str, Any]) -> tuple[Literal["least", "most"], float] | None:
    """The rule for a scale, in a guess: of 1 to 5 stars the least good value is 4. None where values are no scale: some are
    below zero, all are 0 or 1, or they are counts. found: of `feedback_by_name`."""
    low, high, end = name_counts["low"], name_counts["high"], _end(name_counts)
    if low is None or name_counts["is_flag"] or not end:
        return None
    if end < 0:
        return "most", math.floor(0.4 * high) if high > 1 else 0.5
    if low < 0 or high > MOST_OF_SCALE:
        return None
    return "least", math.ceil(0.7 * high) if high > 1 else 0.5


def feedback_notes(tables: Tables, workload: str, rules: FeedbackRules) -> Iterator[str]:
    """A sentence for each way in which names and scales decide what feedback counts for, and the rule that says otherwise."""
    ways: dict[str, list[str]] = {"least": [], "most": [], "zero": [], "turned": [], "unknown": [], "praise": [], "words": []}
    good: dict[str, dict[str, float]] = {"least": dict(rules.least), "most": dict(rules.most)}
    for each in _names_of(tables, workload):
        name = visible(each["name"] or "")
        span = "" if each["low"] is None else f" ({each['low']:g} to {each['high']:g})"
        if each["name"] in rules.least or each["name"] in rules.most:
            continue
        if each["words"]:
            ways["words"].append(name)
        if each["by_name"] and not _is_label(each) and not is_known(each["name"] or ""):
            ways["praise"].append(name)
        if bound := guessed_bound(each):
            ways[bound[0]].append(name + span)
            good[bound[0]][name] = bound[1]
        elif each["is_flag"] and each["low"] == 0 and _end(each) > 0:
            ways["zero"].append(name)
        elif (end := _end(each)) < 1:
            ways["turned" if end else "unknown"].append(name + (span if not end else ""))
    rule = {
        key: yaml.safe_dump(known, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9).strip()
        for key, known in good.items()
    }
    sentences = {
        "least": "each value above 0 counts as a thumb up; give the recipe the lowest good ones, such as "
        f"`curation: {{feedback: {{least: {rule['least']}}}}}`",
        "most": "by the name less is better, so the numbers count for nothing; give the recipe the highest good ones, such as "
        f"`curation: {{feedback: {{most: {rule['most']}}}}}`",
        "zero": "its numbers are 0 and 1 alone, so 0 is a thumb down; `curation: {feedback: {least: {NAME: 0}}}` says that "
        "it is none",
        "turned": "by the name true and 1 are bad; `curation: {feedback: {least: {NAME: 1}}}` says that they are good",
        "unknown": "the name does not say which end is good, so it counts for nothing; `least` or `most` in `curation: "
        "{feedback: ...}` says it",
        "praise": "no word of the name tells which end is good, so true, 1 and more are taken as good; `most` in `curation: "
        "{feedback: {most: {NAME: 0}}}` says that they are bad",
        "words": "has words that are not understood and count for nothing",
    }
    for way, names in ways.items():
        if names:
            yield f"feedback {', '.join(names)}: {sentences[way]}"
