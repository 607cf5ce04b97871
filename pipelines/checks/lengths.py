"""Checks the lengths of rows against the recipe's limits and the base model's positions, on some rows; a run counts all."""

from collections.abc import Mapping
from statistics import median

from model_ops.jobs import filled
from pipelines.checks.finding import CheckFinding, ok, problem, warning
from pipelines.contract import Recipe
from resources.inspecting import FirstLook
from resources.stages import trained_sections

CHARACTERS_A_TOKEN = 4


def check_lengths(recipe: Recipe, tokens: list[int]) -> list[CheckFinding]:
    """Compares the typical row with max_length of the first stage that trains."""
    trained = next((name for name, each in trained_sections().items() if each.rows and name in recipe.trained), None)
    if not tokens or trained is None:
        return []
    length = filled(recipe.trained[trained].resolved().max_length)
    name, typical = f"{trained}.max_length", round(median(tokens))
    if typical > 1.5 * length:
        said = f"half of the rows have about {typical:,} tokens or more, and {name} is {length:,}"
        return [warning("lengths", said, f"raise {name}, or most of each conversation is cut off")]
    return [ok("lengths", f"half of the rows have at most about {typical:,} tokens; {name} is {length:,}")]


def check_room(recipe: Recipe, tokens: list[int], positions: int | None) -> list[CheckFinding]:
    """Checks that prompt and answer have room in the base model's positions. positions: None if unknown."""
    if positions is None:
        return []
    answers = {"evaluation.max_new_tokens": recipe.evaluation.max_new_tokens}
    if recipe.speculator.enabled:
        answers["speculator.answers.max_new_tokens"] = recipe.speculator.answers.max_new_tokens
    full = [f"{name} {tokens:,}" for name, tokens in answers.items() if tokens >= positions]
    if full:
        message = f"{' and '.join(full)} leave no room for a prompt in the base model's {positions:,} positions"
        return [problem("room", message, "lower them, or take a base model with more positions")]
    if not tokens:
        return []
    longer = sum(count > positions for count in tokens)
    said = f"about {longer:,} of {len(tokens):,} rows are longer than the base model's {positions:,} positions"
    if 2 * longer >= len(tokens):
        return [
            warning(
                "room",
                said,
                "take a base model with more positions, or shorter prompts: the run counts tokens "
                "exactly before it trains (length_report), and stops where a stage has no row left",
            )
        ]
    return [ok("room", said)]


def tokens_of_records(seen: Mapping[str, FirstLook]) -> list[int]:
    """Estimated tokens of the first records of logs: question, answer and what the log adds."""
    return [size // CHARACTERS_A_TOKEN for look in seen.values() if look.holds_logs for size in look.characters]
