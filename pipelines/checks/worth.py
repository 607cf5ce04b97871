"""Checks whether a run is worth its hours: rows and steps of each training, whose rows are read, gates that can hold, lengths
of rows. The datasets are rehearsed on the logs, and tokens counted with the base model's tokenizer where it is at hand."""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from types import MappingProxyType

from model_ops.adapters import tokenizer_directory
from model_ops.jobs import ModelError, counted, filled
from model_ops.operations import PreferenceTuningSettings
from model_ops.training import TrainingSettings
from pipelines.checks.base_model import local_base
from pipelines.checks.finding import CheckFinding, ok, problem, warning
from pipelines.checks.sampled_start import check_sampled_start
from pipelines.contract import TINY, BaseModelError, Recipe
from resources.composing import DatasetError, EvalSuiteError, SeedError
from resources.inspecting import MEASURED_ROWS, Asked, FirstLook, Rehearsal, rehearse
from resources.reading import fields_line, fields_of
from resources.sources import SourceError
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


RULE_OF_THREE = 3
"""Of n outcomes that are all alike, the 95 % interval reaches 3 / n from them."""
Z = 1.96


def check_worth(
    recipe: Recipe, lengths: list[int], looks: Mapping[str, FirstLook] = MappingProxyType({})
) -> list[CheckFinding]:
    """Rehearses the recipe's datasets. lengths: gets the tokens of some training rows. looks: first looks at its sources."""
    datasets, preference = recipe.datasets, recipe.datasets.preference
    if recipe.teacher is not None or (preference is not None and preference.dissatisfaction is not None):
        preference = None  # a teacher or a judge may make its pairs
    asked = Asked(
        recipe.workload,
        recipe.sources,
        recipe.seeds,
        recipe.evals,
        recipe.curation,
        datasets.sft,
        preference,
        datasets.rl_prompts,
        recipe.first_day,
        recipe.last_day,
        {name: look.listed for name, look in looks.items()},
    )
    with TemporaryDirectory(prefix="millrace-check-") as folder:
        try:
            rehearsal = rehearse(asked, Path(folder))
        except (EvalSuiteError, SeedError, SourceError):
            return []  # said of the suite, the seed or the source
        except DatasetError as error:
            what, _, remedy = str(error).partition("; ")
            return [problem("rows", what, remedy or "add rows")]
        if rehearsal is None:
            return [ok("rows", "not counted: the logs are large, and have no lines of which a part can be read")]
        counted_by = "the base model's tokenizer and template"
        lengths += _rendered(recipe, Path(folder) / "sft_dataset")
        starts = list(check_sampled_start(recipe, Path(folder)))
    if not lengths:
        counted_by = f"{CHARACTERS_A_TOKEN} characters a token"
        lengths += [size // CHARACTERS_A_TOKEN for size in rehearsal.characters]
    tokens = fmean(lengths)
    about = "about " if rehearsal.share < 1 else ""
    train, validation, test = (rehearsal.rows[name] for name in ("train", "validation", "test"))
    split = f"{train:,} to train, {validation:,} to validate, {test:,} to test"
    return [
        ok("rows", f"{about}{split}, of {about}{tokens:,.0f} tokens each by {counted_by}"),
        _people(rehearsal),
        *_steps(recipe, rehearsal, tokens),
        *starts,
        *(_gates(recipe, rehearsal) if recipe.release.enabled else []),
    ]


def _rendered(recipe: Recipe, dataset: Path) -> list[int]:
    """Tokens of the first training rows by the base model's chat template; [] where it is not at hand."""
    try:
        base = local_base(recipe)
    except BaseModelError:
        base = None
    if base is None:
        return []
    from model_ops.models import load_tokenizer
    from model_ops.rendering import ChatTemplate, Unrenderable, iterate_rows, learnt_turns

    lengths = []
    try:
        tokenizer = load_tokenizer(tokenizer_directory(Path(base.name), base.adapter))
        template = ChatTemplate.of(tokenizer)
        for row in islice(iterate_rows(dataset, "train"), MEASURED_ROWS):
            with suppress(Unrenderable):
                texts = [turn.context + turn.answer for turn in learnt_turns(row, template)]
                ids = [row.token_ids] if row.token_ids else tokenizer(texts, add_special_tokens=False)["input_ids"]
                lengths.append(max(map(len, ids)))
    except ModelError:
        return []  # reported with the base model
    return lengths


def _people(rehearsal: Rehearsal) -> CheckFinding:
    read = {"user": rehearsal.with_user, "session": rehearsal.with_session}
    said = ", ".join(
        f"{name}s read: {f'{count:,} of {rehearsal.requests:,}' if count else 'none'}" for name, count in read.items()
    )
    for source, keys in rehearsal.unread.items():
        proposed = {name: path for name, path in fields_of(keys).items() if not read.get(name, 1)}
        if proposed:
            words = f"under sources.{source}, {fields_line(proposed)} would read them, for splits and erasure"
            return warning("users", said, words)
    if any(read.values()):
        return ok("users", said)
    message = f"{said}; rows of one person may be in training and in test"
    return warning("users", message, "name their fields under fields of a source: {user: PATH, session: PATH}")


def _steps(recipe: Recipe, rehearsal: Rehearsal, tokens: float) -> Iterator[CheckFinding]:
    each_pair = tokens * rehearsal.pair_characters / max(1.0, fmean(rehearsal.characters))
    for section, given in recipe.trained.items():
        settings = given.resolved()
        count, word, kind = _learnt(recipe, section, settings, rehearsal)
        each = each_pair if kind == "pair" else tokens
        if section == "tiny" or not count:
            continue
        if asks := settings.prompts_a_step:
            steps, size = settings.steps_over(count, asks), f"of {asks} prompts"
            passes = steps * asks / count
        else:
            longest = min(each, filled(settings.max_length))
            settings = settings.fitted(round(count * longest), round(longest))
            per_step = filled(settings.tokens_per_step)
            steps = settings.steps_over(round(count * longest), per_step)
            size, passes = f"of {per_step:,} tokens", steps * per_step / (count * longest)
        said = f"{counted(count, word)}, {counted(steps, 'step')} {size} ({passes:.1f} passes) at {settings.learning_rate:.2g}"
        remedy = settings.more_steps(steps, section)
        if recipe.base_model != TINY and (usual := _far_rate(given)) is not None:
            words = f"leave {section}.learning_rate out, which takes {usual:.2g}"
            yield warning(section, f"{said}: the rate is far from this method's default", words)
        if remedy is None or recipe.base_model == TINY:
            yield ok(section, said)
            continue
        if settings.steps is None:
            remedy = f"add rows ({math.ceil(count * settings.FEW_STEPS / steps):,} would do), or {remedy}"
        yield warning(section, f"{said}: too few steps to learn from", remedy)


FAR_ABOVE, FAR_BELOW = 10, 0.1
"""Times the default learning rate from which a given one is warned of."""


def _far_rate(given: TrainingSettings) -> float | None:
    """The default learning rate of settings that give another one far from it; None where theirs is near."""
    usual = filled(given.model_copy(update={"learning_rate": None}).resolved().learning_rate)
    times = (given.learning_rate or usual) / usual
    return usual if times > FAR_ABOVE or times < FAR_BELOW else None


def _learnt(recipe: Recipe, section: str, settings: TrainingSettings, rehearsal: Rehearsal) -> tuple[int, str, str]:
    """What a section's training reads: number, word, and whether it is rows or pairs."""
    prompts = rehearsal.prompts.get("train", 0)
    dataset = recipe.policy.rows_of(trained_sections()[section].name)
    tuned = settings if isinstance(settings, PreferenceTuningSettings) else None
    if dataset == "rl_prompts":
        return prompts, "prompt", "row"
    if tuned is not None and tuned.on_policy is not None:
        return rehearsal.pairs.get("train", 0), "prompt", "row"
    if dataset == "preference_dataset":
        read = tuned.rows_read if tuned is not None else "pairs"
        kinds = {"pairs": (rehearsal.pairs,), "unpaired": (rehearsal.unpaired,)}.get(
            read, (rehearsal.pairs, rehearsal.unpaired)
        )
        return sum(kind.get("train", 0) for kind in kinds), "pair" if read == "pairs" else "answer", "pair"
    rows = rehearsal.rows["train"]
    if dataset == "speculator_dataset":
        rows = min(rows, recipe.speculator.answers.prompts or rows)
    return rows, "row", "row"


def _gates(recipe: Recipe, rehearsal: Rehearsal) -> list[CheckFinding]:
    short = []
    for gate, have, least, what, key in _needs(recipe, rehearsal):
        if have < least:
            more = (
                f"set datasets.sft.test_share to {min(0.5, recipe.datasets.sft.test_share * least / have):.2g}, "
                if have and key
                else ""
            )
            said = f"{gate} cannot hold before there are {least} held-out {what}, and there will be {have}"
            short.append(warning("gates", said, f"add {what}, {more}or set {gate.partition('/')[0]}: null"))
    return short or [ok("gates", "there are enough held-out rows for every gate to hold")]


def _needs(recipe: Recipe, rehearsal: Rehearsal) -> Iterator[tuple[str, int, int, str, bool]]:
    """(gate, number there will be, least number, of what, whether test_share decides) for each gate of the recipe."""
    gates, measured = recipe.release.gates, recipe.policy.measured_rows
    rows, pairs, prompts = (split.get("test", 0) for split in (rehearsal.rows, rehearsal.pairs, rehearsal.prompts))
    if gates.loss_above_base is not None:
        yield "release.gates.loss_above_base", rows, 2, "rows", True
    if "preferences" in measured and rehearsal.pairs:
        if gates.preference_accuracy is not None:
            yield "release.gates.preference_accuracy", pairs, _alike(gates.preference_accuracy), "pairs", True
        if gates.divergence_from_parent is not None:
            yield "release.gates.divergence_from_parent", pairs, 2, "pairs", True
    if "prompts" in measured and gates.rft_gain is not None:
        yield (
            "release.gates.rft_gain",
            prompts or rehearsal.prompts.get("validation", 0),
            _alike(gates.rft_gain),
            "prompts",
            True,
        )
    if recipe.reward_model is not None and recipe.reward_model.enabled:
        gate = recipe.reward_model.gate
        if gate.accuracy is not None and gate.accuracy < 1:
            wilson = math.ceil(gate.accuracy * Z**2 / (1 - gate.accuracy))  # all right: the lower end is n / (n + z^2)
            yield "reward_model.gate.accuracy", pairs, max(2, wilson), "pairs", True
    margin = gates.accuracy_below_base
    for suite, items in rehearsal.items.items():
        if margin is not None:  # a model that answers as its base does: 3 / n below it
            least = math.ceil(RULE_OF_THREE / margin - 1e-9) if margin else RULE_OF_THREE
            have = min(items, recipe.evaluation.tasks.items)
            yield f"release.gates.accuracy_below_base/{suite}", have, least, "items", False


def _alike(bound: float) -> int:
    """Least number of outcomes, all as good as can be, whose interval lies above a share's bound."""
    return max(2, math.ceil(RULE_OF_THREE / (1 - bound) - 1e-9)) if bound < 1 else 10**9
