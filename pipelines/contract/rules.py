"""Rules between the keys of a recipe: (key, sentence) for each broken one."""

import difflib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from model_ops.adapters import LoraSettings
from model_ops.operations import AUTO, PREFERRED, REINFORCED, TRAINED
from model_ops.planning import LLAMA_CPP, PlaceError, cache_why_not, parse_place, why_not
from model_ops.reinforcement import TASKSETS
from model_ops.serving import lora_flags
from model_ops.speculators import ARCHITECTURES
from pipelines.contract.fields import TINY, TRAINED_STAGES, RecipeFields
from pipelines.contract.text import Place
from resources.lake import SCHEMAS
from resources.reading import CHATS_SOURCE as RATED
from resources.stages import STAGES, stage

Broken = Iterator[tuple[str | Place, str]]


def broken_rules(recipe: RecipeFields) -> Broken:
    """Checks the rules between keys; needs nothing but the recipe."""
    yield from _no_model_left(recipe)
    yield from _what_is_released(recipe)
    yield from _what_is_served(recipe)
    yield from _what_the_evaluation_serves(recipe)
    yield from _what_drafts(recipe)
    yield from _what_is_trained(recipe)
    yield from _what_is_merged(recipe)
    yield from _who_is_taught(recipe)
    yield from _what_is_named(recipe)
    yield from _the_data(recipe)
    yield from _what_is_decided(recipe)
    yield from _where_models_lie(recipe)


def _what_is_decided(recipe: RecipeFields) -> Broken:
    decide = recipe.automation.decide
    if decide.budget.money_per_week is not None and decide.price_per_device_hour is None:
        said = "no price is known, so no cost in money is either; set automation.decide.price_per_device_hour, or leave it out"
        yield ("automation.decide.budget.money_per_week", said)
    if decide.enabled and not decide.causes:
        yield "automation.decide.causes", "it is empty, so nothing would be looked at; name a cause, or set enabled to false"
    if decide.enabled and decide.causes == ["schedule"] and not recipe.automation.retrain.enabled:
        said = "it is schedule alone, and there is none; set automation.retrain.enabled to true, or name another cause"
        yield ("automation.decide.causes", said)
    if decide.enabled and "* * * * *" in decide.quiet:
        yield (
            "automation.decide.quiet",
            "* * * * * is every minute, so nothing would ever be started; give the minutes in "
            "which nothing may start, or set dry_run to true",
        )


def _no_model_left(recipe: RecipeFields) -> Broken:
    switches = [line.switch for line in STAGES if line.kind == "model" and line.switch]
    if recipe.policy.off >= set(switches):
        yield (
            f"{switches[0]}.enabled",
            f"{', '.join(switches[:-1])} and {switches[-1]} are all switched off, so no model would be made; enable one of "
            "them. To build the datasets only, leave one on and run with --select +sft_dataset",
        )


def _what_is_released(recipe: RecipeFields) -> Broken:
    """What a watch needs, and a release of form adapter: the base model, one adapter, no drafter."""
    if not recipe.release.enabled and recipe.release.watch is not None:
        yield "release.watch", "release.enabled is false, so there is nothing to watch; leave it out, or set enabled to true"
    if not recipe.release.enabled or recipe.release.form != "adapter":
        return
    sft, key = recipe.sft, "release.form"
    if recipe.policy.served != "sft_model" or sft.method == "full":
        instead = (
            f"the fine-tuned model with sft.method {sft.method}"
            if recipe.policy.served == "sft_model"
            else (f"the {stage(recipe.policy.served).role} model")
        )
        yield (
            key,
            f"it is adapter, and what is served is {instead}, which is no LoRA adapter on the base model; set sft.method to "
            "lora or qlora and switch the stages after sft off (student, quantize), or set release.form to merged",
        )
    elif sft.continue_from is not None:
        yield (
            "sft.continue_from",
            f"it is {sft.continue_from}, and release.form is adapter: what is continued has the earlier adapter merged in, so "
            "the new one is none on the base model; leave it out, or set release.form to merged",
        )
    elif (rank := (sft.lora or LoraSettings()).rank) > lora_flags.MAX_RANKS[-1]:
        yield (
            "sft.lora.rank",
            f"it is {rank}, release.form is adapter, and vLLM serves ranks up to {lora_flags.MAX_RANKS[-1]}; give "
            "less, or set release.form to merged",
        )
    if recipe.policy.speculator:
        yield (
            key,
            "it is adapter, and a drafter is trained for one model: a server on a shared base has one drafter for all "
            "its adapters; set speculator.enabled to false, or set release.form to merged",
        )
    if recipe.release.serve_on and not recipe.release.serve_on.strip().lower().startswith("vllm"):
        yield (
            "release.serve_on",
            f"it is {recipe.release.serve_on}, and adapters are served by vLLM only; name vllm, or set release.form to merged",
        )


def _what_is_served(recipe: RecipeFields) -> Broken:
    try:
        place = recipe.release.serve_on and parse_place(recipe.release.serve_on)
    except PlaceError as error:
        yield "release.serve_on", str(error)
        return
    if place and place.server == LLAMA_CPP:
        if not (recipe.quantize.enabled and recipe.quantize.gguf):
            yield "release.serve_on", f"{place} reads GGUF files only: set quantize: {{gguf: true}}"
    elif place and recipe.quantize.enabled:
        for scheme in recipe.quantize.schemes:
            if refused := why_not(scheme, place):
                yield "quantize.candidates" if recipe.quantize.scheme == AUTO else "quantize.scheme", refused
        if recipe.quantize.kv_cache and (refused := cache_why_not(place)):
            yield "quantize.kv_cache", refused


def _what_the_evaluation_serves(recipe: RecipeFields) -> Broken:
    server = recipe.evaluation.server
    levels = recipe.release.drafting.concurrency or []
    measured = [] if server is None else server.concurrencies
    if recipe.release.enabled and (missing := sorted(set(levels) - set(measured))):
        yield (
            "release.drafting.concurrency",
            (
                f"{', '.join(map(str, missing))} {'is' if len(missing) == 1 else 'are'} not measured: "
                + (
                    "evaluation.server names no server; add it, or leave release.drafting.concurrency out"
                    if server is None
                    else f"evaluation.server.concurrencies is {server.concurrencies}; add it there"
                )
            ),
        )


def _what_drafts(recipe: RecipeFields) -> Broken:
    drafter, architecture = recipe.speculator, ARCHITECTURES[recipe.speculator.architecture]
    begun = stage(recipe.drafter_from) if recipe.drafter_from else None
    if begun and architecture.starts_from and begun.switch in recipe.policy.off:
        yield (
            "speculator.architecture",
            f"it is {drafter.architecture}, which begins from the {begun.role}, and {begun.switch}.enabled is false; "
            f"enable the {begun.role}, or name a directory in speculator.{architecture.starts_from.key}",
        )
    if drafter.enabled and architecture.refuses_tiny_base and recipe.base_model == "tiny":
        yield "speculator.architecture", f"it is {drafter.architecture}, {architecture.refuses_tiny_base}"
    if (
        drafter.enabled
        and architecture.unquantized_layer
        and "mtp_layer" in recipe.quantize.model_fields_set
        and not recipe.quantize.mtp_layer
    ):
        yield (
            "quantize.mtp_layer",
            f"it is false and speculator.architecture is {drafter.architecture}: vLLM would take the layer's floats for "
            "int8 and draft badly; leave quantize.mtp_layer out",
        )
    gate = recipe.release.gates.acceptance_length
    if drafter.enabled and gate is not None and gate > drafter.num_speculative_tokens + 1:
        yield (
            "release.gates.acceptance_length",
            f"{gate:g} cannot be reached: {drafter.num_speculative_tokens} drafted tokens give at most "
            f"{drafter.num_speculative_tokens + 1} a verification; give less, or raise speculator.num_speculative_tokens",
        )
    if drafter.previous_share is not None and drafter.continue_from is None:
        said = "previous_share is set and nothing is continued: set speculator.continue_from, or leave previous_share out"
        yield ("speculator.previous_share", said)


def _what_is_trained(recipe: RecipeFields) -> Broken:
    if recipe.second_sft is not None and recipe.second_sft.enabled and not recipe.sft.enabled:
        said = "it goes on from the fine-tuned model, and sft.enabled is false; move these settings to sft, or enable sft"
        yield (stage("second_sft_model").section, said)
    for section in TRAINED_STAGES.values():
        settings = getattr(recipe, section)
        is_on = settings is not None and getattr(settings, "enabled", True)
        if is_on and getattr(settings, "reasoning_budget", None) and recipe.datasets.sft.thinking == "strip":
            yield f"{section}.reasoning_budget", "datasets.sft.thinking is strip, which leaves no reasoning; set it to keep"
    for line in STAGES:
        rows = recipe.policy.rows_of(line.name) if line.section else ""
        if rows in recipe.policy.disabled and line.switch not in recipe.policy.off:
            yield line.section, f"it learns {rows}, which is not made: give {stage(rows).switch}, or leave {line.section} out"
    if "reward_model" in recipe.policy.off:
        for key in (key for key, grader in recipe.graders.items() if grader.asks_reward_model):
            yield key, "it asks the reward model, which is not trained: give reward_model, or another grader"
    sampling = recipe.preference and recipe.preference.on_policy
    if sampling and sampling.prompts != "rl_prompts" and any(part.by == "verifier" for part in sampling.grader.parts.values()):
        yield (
            "preference.on_policy.grader",
            f"verifier reads what rows of rl_prompts bring, and the prompts are those of {sampling.prompts}: set prompts to "
            "rl_prompts, or choose another grader",
        )


MERGED = {REINFORCED: "model trained on rewards", PREFERRED: "model trained on preferences", TRAINED: "fine-tuned model"}
"""Words of `merge.models` -> the model."""


def _what_is_merged(recipe: RecipeFields) -> Broken:
    merge = recipe.merge
    if merge is None:
        return
    enabled = {word: word not in recipe.policy.off for word in (REINFORCED, PREFERRED)} | {TRAINED: recipe.sft.enabled}
    last = next((word for word, is_on in enabled.items() if is_on), None)
    if last is not None and last not in merge.listed:
        which = MERGED[last]
        yield "merge.models", f"{last} is missing, so the {which} would not be used; add it, or set {last}.enabled to false"
    for word, is_on in enabled.items():
        if word in merge.listed and not is_on:
            yield "merge.models", f"it lists {word}, and {word}.enabled is false; take {word} out, or enable {word}"


def _who_is_taught(recipe: RecipeFields) -> Broken:
    reads = recipe.student.enabled and recipe.student.teacher == "answers"
    gives = recipe.teacher is not None and recipe.teacher.logprobs is not None and "student_model" in recipe.policy.taught
    if reads and not gives:
        yield (
            "student.teacher",
            "it is answers, and no teacher gives the student log-probabilities; set teacher.logprobs, and teacher.trains "
            "to student or both, or choose online or cache",
        )
    if recipe.teacher is None:
        return
    if reads and recipe.datasets.sft.thinking != "keep":
        yield (
            "datasets.sft.thinking",
            f"it is {recipe.datasets.sft.thinking}, and log-probabilities are those of the answers as the teacher gave "
            "them; set it to keep, or set student.teacher to online or cache",
        )
    if recipe.teacher.logprobs is not None and not reads:
        yield (
            "teacher.logprobs",
            "nobody learns the log-probabilities, since student.teacher is not answers; set it to answers, or leave "
            "teacher.logprobs out",
        )
    if recipe.teacher.judged and recipe.curation.judge is None:
        yield "teacher.verify.kind", "it is judge, and nothing says which; set curation.judge, or choose another kind"
    if recipe.teacher.base == TRAINED and recipe.policy.source_of("student_model") == "base_model":
        said = f"it is {TRAINED}, the fine-tuned model, and sft.enabled is false; enable sft, or name the directory of a model"
        yield ("teacher.base", said)
    if recipe.teacher.prompts == "rl_prompts" and recipe.datasets.rl_prompts is None:
        yield "teacher.prompts", "it is rl_prompts, which is not made; give datasets.rl_prompts, or leave prompts out"
    learners = [each.section for each in STAGES if each.name in recipe.policy.taught]
    if all(section in recipe.policy.off for section in learners):
        yield (
            "teacher.trains",
            f"it is {recipe.teacher.trains}, and {' and '.join(f'{name}.enabled' for name in learners)} "
            f"{'is' if len(learners) == 1 else 'are'} false, so nobody would learn the answers; leave teacher out, or "
            "enable one of them",
        )


def _what_is_named(recipe: RecipeFields) -> Broken:
    named, own = recipe.datasets.named, {name for line in STAGES for name in (line.name, line.artefact_name)}
    for name, settings in named.items():
        if name in own or name in SCHEMAS:
            yield ("datasets", "named", name), "millrace makes something of this name itself; choose another name"
        if recipe.curation.judge is None and (settings.min_quality or settings.min_difficulty):
            key = "min_quality" if settings.min_quality else "min_difficulty"
            said = "no judge scores the rows, so none would be left; set curation.judge, or leave it out"
            yield (("datasets", "named", name, key), said)
    for stage_name, section in TRAINED_STAGES.items():
        settings = getattr(recipe, section)
        dataset = getattr(settings, "dataset", None)
        if dataset is not None and dataset not in named:
            yield (
                f"{section}.dataset",
                f"there is no dataset {dataset} under datasets.named; "
                + (f"there {'is' if len(named) == 1 else 'are'} {', '.join(named)}" if named else "none is given there"),
            )
        elif dataset is not None and recipe.teacher is not None and stage_name in recipe.policy.taught:
            yield (
                f"{section}.dataset",
                f"teacher.trains is {recipe.teacher.trains}, so {section} learns the teacher's answers to datasets.sft; "
                "leave one of the two out",
            )


def _the_data(recipe: RecipeFields) -> Broken:
    pairs = recipe.datasets.preference
    if pairs is not None and pairs.dissatisfaction is not None and recipe.curation.judge is None:
        yield "datasets.preference.dissatisfaction", "a judge rates the reactions, and nothing says which; set curation.judge"
    known = [*recipe.sources, *recipe.seeds, RATED]
    mixtures = {
        ("datasets", "sft"): recipe.datasets.sft,
        **{("datasets", "named", name): named for name, named in recipe.datasets.named.items()},
    }
    for place, mixture in mixtures.items():
        for key in ("mix", "limits"):
            for name in getattr(mixture, key):
                if name not in known:
                    near = difflib.get_close_matches(name, known, n=1)
                    meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                    yield (*place, key, name), f"no source and no seed has this name; {meant}"
    for name, seed in recipe.seeds.items():
        if seed.dataset and seed.dataset.startswith(f"{recipe.workload}/") and not seed.version:
            yield (
                ("seeds", name, "dataset"),
                f"{seed.dataset} is of this recipe's own workload, where a current version could be made from itself; name "
                "an earlier `version`, or a dataset of another workload",
            )
    if recipe.datasets.sft.test_share == 0:
        yield "datasets.sft.test_share", "it is 0, so the evaluation would have no row to measure on; give a share above 0"
    for name, suite in recipe.evals.items():
        if suite.task == "record":
            yield ("evals", name, "task"), "records are for an environment or an agent, and have no score; choose another kind"
    for name, tasks in (recipe.datasets.rl_prompts.tasks if recipe.datasets.rl_prompts else {}).items():
        if recipe.rft is not None and recipe.rft.agent == TASKSETS and tasks.task != "record":
            said = f"it is {tasks.task}, and rft.agent plays what `millrace taskset` wrote; give record"
            yield (("datasets", "rl_prompts", "tasks", name, "task"), said)
        if any(tasks.uri == suite.uri for suite in recipe.evals.values()):
            said = "these items are under evals too, so a model would be trained on what it is measured by; name other tasks"
            yield (("datasets", "rl_prompts", "tasks", name), said)
    for name in recipe.retention.counts_only if recipe.retention else ():
        if name not in (*recipe.sources, RATED):
            yield "retention.counts_only", f"no source is called {name}; there are {', '.join(recipe.sources)}"
    if RATED in known[:-1]:
        said = "answers that people rate in `millrace chat` have this name; give another one"
        yield (("sources" if RATED in recipe.sources else "seeds", RATED), said)
    for name in set(recipe.sources) & set(recipe.seeds):
        yield ("seeds", name), "a source has this name too, and datasets.sft.mix could mean either; rename one of them"
    if recipe.first_day and recipe.last_day and recipe.last_day < recipe.first_day:
        yield "last_day", f"{recipe.last_day} is before first_day {recipe.first_day}; change one of them"
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)  # in other time zones it is already tomorrow
    if recipe.first_day and recipe.first_day > tomorrow:
        yield "first_day", f"{recipe.first_day} is in the future, so there would be no day to read; give a day that has begun"


def _where_models_lie(recipe: RecipeFields) -> Broken:
    """A revision of a model that is not on the Hub, a student deeper than its teacher (of a Hub id only `check` knows)."""
    is_here = recipe.base_model == TINY or Path(recipe.base_model).is_absolute()
    if recipe.base_revision is not None and is_here:
        yield "base_revision", f"it is {recipe.base_revision}, and base_model is not on the Hugging Face Hub; leave it out"
    student, layers = recipe.student, recipe.tiny.layers if recipe.base_model == TINY else _layers_of(recipe.base_model)
    if layers is None or not student.enabled or student.base is not None:
        return
    try:
        student.depth(layers)
    except ValueError as error:
        yield "student.layers", str(error)


def _layers_of(directory: str) -> int | None:
    try:
        config = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
        layers = config.get("text_config", config).get("num_hidden_layers")
    except (OSError, ValueError, AttributeError):
        return None
    return layers if isinstance(layers, int) else None
