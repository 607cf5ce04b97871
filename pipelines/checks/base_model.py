"""Checks the base model: its files, its chat template against the logs, and whether every stage supports its architecture."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from model_ops.adapters import WEIGHTS, tokenizer_directory
from model_ops.families import FAMILIES, has_layers
from model_ops.files import TensorFileError, hub, read_directory, tensor_files
from model_ops.jobs import ModelError, filled
from model_ops.models import Defect, float_form, verify_model
from model_ops.speculators import ARCHITECTURES
from pipelines.checks.finding import CheckFinding, CheckStep, ok, problem, run_checks, warning
from pipelines.contract import Base, BaseModelError, Recipe, look_at_base
from resources.stages import stage, trained_sections

CHECK = "base model"
STUDENT = stage("student_model").section
HUB_SECONDS = 5
SECONDS_OF_TORCH = 100.0
"""Seconds that importing torch and transformers may take on a busy machine."""
TOOL = {
    "type": "function",
    "function": {
        "name": "find_booking",
        "description": "Finds a booking.",
        "parameters": {"type": "object", "properties": {"reference": {"type": "string"}}, "required": ["reference"]},
    },
}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "first question"},
    {"role": "assistant", "content": "first answer"},
    {"role": "user", "content": "second question"},
    {"role": "assistant", "content": "second answer"},
]
CALLS: list[dict[str, Any]] = [
    {"role": "user", "content": "where is it"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "find_booking", "arguments": {"reference": "QX7"}}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "name": "find_booking", "content": "seat 12A"},
    {"role": "assistant", "content": "seat 12A it is"},
]


def check_base_model(recipe: Recipe, system_share: float, has_tools: bool) -> list[CheckFinding]:
    """system_share: share of sampled records with a system prompt. has_tools: whether the logs hold tool calls."""
    try:
        base, revision = look_at_base(recipe.base_model), recipe.base_revision
        while base.kind == "hub":
            snapshot, revision = _hub(base.name, revision), None  # the recipe's revision is of the model that it names
            if isinstance(snapshot, CheckFinding):
                return [snapshot]
            local = look_at_base(str(snapshot))  # an adapter's snapshot leads on to the model under it
            base = replace(local, adapter=base.adapter or local.adapter)
    except BaseModelError as error:
        return [problem(CHECK, str(error), "correct base_model")]
    if base.kind == "tiny":
        said = "tiny is a toy model, built by the run; it only shows that the logs reach a release"
        return [ok(CHECK, said), *_depth(recipe, None)]
    directory = Path(base.name)
    parts = [
        CheckStep(CHECK, lambda: _whole(directory, base)),
        CheckStep("adapter", lambda: _adapter(base)),
        CheckStep("architecture", lambda: _families(recipe, base)),
        CheckStep("adapter", lambda: _targets(recipe, base)),
        CheckStep(STUDENT, lambda: [*_depth(recipe, base), *_widths(recipe, base)]),
        CheckStep("quantize", lambda: _quantized(recipe, base, directory)),
        CheckStep("context", lambda: _context(recipe, base)),
        CheckStep(
            "chat template", lambda: _template(recipe, tokenizer_directory(directory, base.adapter), system_share, has_tools)
        ),
    ]
    # one after the other: transformers cannot be imported by two threads at once
    return [finding for part in parts for finding in run_checks([part], SECONDS_OF_TORCH)]


def local_base(recipe: Recipe) -> Base | None:
    """The base model as it lies on this machine, of a Hub id its copy in the cache; None for tiny, and where there is none.
    Raises BaseModelError."""
    base, revision = look_at_base(recipe.base_model), recipe.base_revision
    while base.kind == "hub":
        if (copy := _copy(base.name, revision)) is None:
            return None
        local, revision = look_at_base(str(copy)), None
        base = replace(local, adapter=base.adapter or local.adapter)
    return None if base.kind == "tiny" else base


def _copy(name: str, revision: str | None) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    with suppress(LocalEntryNotFoundError, OSError, ValueError):
        return Path(snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=list(hub.MODEL_FILES)))
    return None


def _hub(name: str, revision: str | None) -> Path | CheckFinding:
    """A Hub id's local copy at a branch, tag or commit (None: the default branch), or what the Hub says of it."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if (copy := _copy(name, revision)) is not None:
        return copy
    meant = f"{name} at revision {revision}" if revision else name
    if hub.is_offline():
        said = f"{meant} is not in the local cache, and HF_HUB_OFFLINE forbids to fetch it"
        return problem(CHECK, said, "unset HF_HUB_OFFLINE, or name a directory")
    try:
        HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS)
    except GatedRepoError:
        message = f"access to {name} on the Hugging Face Hub needs an agreement"
        return problem(CHECK, message, "accept its terms there and set HF_TOKEN, or name a directory")
    except RevisionNotFoundError:
        words = f"the Hugging Face Hub has no revision {revision} of {name}"
        return problem(CHECK, words, "correct base_revision: a branch, a tag or a commit")
    except RepositoryNotFoundError:
        sentence = f"the Hugging Face Hub has no model {name}, or none that this machine may see"
        return problem(CHECK, sentence, "correct base_model, or set HF_TOKEN")
    except Exception as error:  # of the library under HfApi, which changed twice: requests, httpx, httpx2
        sentence = f"{meant} is not in the local cache, and the Hugging Face Hub cannot be reached ({type(error).__name__})"
        return warning(CHECK, sentence, "go online, or name a directory that holds the model")
    return ok(CHECK, f"{meant} is on the Hugging Face Hub; the first run fetches it")


def _whole(directory: Path, base: Base) -> list[CheckFinding]:
    """Compares tensors (file headers only) with the config, and the tokenizer with the vocabulary."""
    remedy = "copy the whole model again"
    if not any(directory.glob("*.safetensors")):
        return [problem(CHECK, f"{directory} holds no .safetensors file", "give a model saved as safetensors")]
    try:
        tensors = read_directory(directory)
    except TensorFileError as error:
        return [problem(CHECK, str(error), remedy)]
    except OSError as error:
        return [problem(CHECK, f"{directory} cannot be read: {error}", "give the user that runs millrace access to it")]
    config, size = base.config, ""
    if config.get("quantization_config") is not None:
        try:
            form = float_form(config, tensors)
        except ModelError as error:
            return [problem(CHECK, str(error).partition("; name")[0], "name the model before it was quantized")]
        tensors, config = form.headers(), {**config, "quantization_config": None, "dtype": "bfloat16"}
        size = f", {form.title}; the first run writes {form.bytes / 1e9:,.2f} GB of bfloat16 weights"
    findings = [
        ok(
            CHECK,
            f"{base.model_type} of {base.layers or '?'} layers, {len(tensors):,} tensors, "
            f"{base.weight_bytes / 1e9:,.2f} GB{size}",
        )
    ]
    for fault in _first(verify_model.verify_weights(config, tensors)):
        bad = fault.breaks_loading
        findings.append(
            (problem if bad else warning)(CHECK, fault.sentence, remedy if bad else "check that this is the model you mean")
        )
    for fault in verify_model.verify_files_to_serve(directory, base.config):
        grave = fault.file in ("tokenizer.json", "chat_template.jinja")
        mend = "put the file into the model's directory" if grave else "copy the one it came with"
        findings.append((problem if grave else warning)(CHECK, fault.sentence, mend))
    return findings


def _first(faults: list[Defect], most: int = 3) -> list[Defect]:
    if len(faults) <= most:
        return faults
    last = f"{faults[most - 1].sentence} (and {len(faults) - most} more faults of tensors)"
    return [*faults[: most - 1], replace(faults[most - 1], sentence=last)]


def _adapter(base: Base) -> list[CheckFinding]:
    if not base.adapter:
        return []
    if base.config.get("quantization_config") is not None:
        said = f"{base.name}, the adapter's base model, is quantized"
        return [problem("adapter", said, "name its unquantized form in adapter_config.json")]
    weights = Path(base.adapter) / WEIGHTS
    remedy = "save the adapter as safetensors and name its directory"
    if not weights.is_file():
        return [problem("adapter", f"{base.adapter} holds no {WEIGHTS}", remedy)]
    try:
        tensors = tensor_files.read_headers(weights)
    except TensorFileError as error:
        return [problem("adapter", str(error), "copy the whole adapter again")]
    return [ok("adapter", f"{len(tensors):,} tensors in {base.adapter}, merged into {base.name} by the first run")]


def _families(recipe: Recipe, base: Base) -> list[CheckFinding]:
    kind, body = base.model_type, "qwen2" if has_layers(base.config) else base.model_type
    findings = []
    if body not in FAMILIES:
        findings += _tried(recipe, base)
    elif FAMILIES[body].rows == "packed":
        findings.append(ok("architecture", f"{kind} ({FAMILIES[body].title}): attention keeps the documents of a row apart"))
    else:
        words = (
            f"{kind} ({FAMILIES[body].title}): every document of a row is computed on its own, "
            "because the model carries a state along the row"
        )
        findings.append(ok("architecture", words))
    drafter = recipe.speculator
    start = ARCHITECTURES[drafter.architecture].starts_from
    if start is not None and recipe.drafter_from == "base_model" and (lacking := start.lacking_in(base.config)):
        said = f"speculator.architecture {drafter.architecture} {lacking}"
        findings.append(problem("architecture", said, "take another architecture, such as eagle3"))
    vocabulary = base.config.get("vocab_size")
    if drafter.enabled and isinstance(vocabulary, int) and (getattr(drafter, "draft_vocab_size", None) or 0) > vocabulary:
        message = (
            f"speculator.draft_vocab_size is {drafter.draft_vocab_size:,}, and the base model's vocabulary has "
            f"{vocabulary:,} tokens"
        )
        findings.append(problem("architecture", message, "leave the key out, and it is chosen from the traffic"))
    return findings


def _targets(recipe: Recipe, base: Base) -> list[CheckFinding]:
    adapters = {name: getattr(settings.resolved(), "lora", None) for name, settings in recipe.trained.items()}
    named = {name: adapter.targets for name, adapter in adapters.items() if adapter is not None and adapter.targets}
    if not named:
        return []
    from transformers import AutoConfig

    from model_ops.models import FAILURES
    from model_ops.planning import refuse_unmatched_targets

    findings = []
    for name, targets in named.items():
        try:
            refuse_unmatched_targets(AutoConfig.for_model(**{**base.config, "quantization_config": None}), targets)
            findings.append(ok("adapter", f"{name}.lora.targets {', '.join(targets)} match layers of the model"))
        except ModelError as error:
            said = f"correct {name}.lora.targets, or leave it out for all linear layers"
            findings.append(problem("adapter", str(error), said))
        except FAILURES:  # not a model that transformers builds, which the family's check says
            return []
    return findings


def _tried(recipe: Recipe, base: Base) -> list[CheckFinding]:
    """Tries a family that no table names on a small model of the base's config."""
    from model_ops.planning import try_family

    kind, trial = base.model_type, try_family(base.config)
    if not trial.tried:
        message = f"{kind} is not among the families that are known ({', '.join(FAMILIES)}), and too large to be tried here"
        words = "it is tried when training begins, and refused where documents see each other"
        return [warning("architecture", message, words)]
    findings = []
    uses = (
        ("training", trial.train, True, "name a model of another family"),
        ("decoding", trial.decode, recipe.speculator.enabled, "set speculator: {enabled: false}"),
        ("quantize", trial.quantize, recipe.quantize.enabled, "set quantize: {enabled: false}"),
    )
    for use, said, wanted, remedy in uses:
        if wanted and said is not None:
            findings.append(problem("architecture", f"{use}: {said}", remedy))
    return findings or [
        ok(
            "architecture",
            f"{kind} is in no table, and was tried on a small model: documents stay apart, "
            "gradients are finite, and decoding with a cache is exact",
        )
    ]


def _depth(recipe: Recipe, base: Base | None) -> list[CheckFinding]:
    depth = recipe.tiny.layers if base is None else base.layers
    wanted = recipe.student.asked_layers
    if not recipe.student.enabled or recipe.student.base is not None or depth is None or wanted < 1:
        return []
    try:
        recipe.student.depth(depth)
    except ValueError as error:
        return [problem(STUDENT, *str(error).split("; ", 1))]
    return [ok(STUDENT, f"{wanted:g} of {depth} layers")]


def _widths(recipe: Recipe, base: Base) -> list[CheckFinding]:
    """Whether the teacher, of the base model's shape, can be cut as narrow as the recipe says."""
    student = recipe.student
    if not student.enabled or not (student.mlp_width or student.heads or student.hidden_size):
        return []
    from transformers import AutoConfig

    from model_ops.models import FAILURES
    from model_ops.pruning import widths_of

    try:
        config = AutoConfig.for_model(**{**base.config, "quantization_config": None})
        widths_of(config, student.mlp_width, student.heads, student.hidden_size)
    except ModelError as error:
        return [problem(STUDENT, *_in_two(error))]
    except FAILURES:  # not a model that transformers builds, which the family's check says
        return []
    return []


def _quantized(recipe: Recipe, base: Base, directory: Path) -> list[CheckFinding]:
    """What `quantize` would refuse of the model it gets, as far as the base model's files tell."""
    if not recipe.quantize.enabled or base.adapter or base.config.get("quantization_config") is not None:
        return []
    from model_ops.operations import checked_source

    settings = recipe.quantize
    if recipe.student.enabled and settings.budget is not None:
        settings = settings.model_copy(update={"budget": 1.0})
    try:
        checked_source(directory, settings)
    except ModelError as error:
        return [problem("quantize", *_in_two(error))]
    return []


def _in_two(error: ModelError) -> tuple[str, str]:
    """What is wrong, and the remedy, which a sentence puts after its last colon or semicolon."""
    said = str(error)
    cut = max(said.rfind(": "), said.rfind("; "))
    return (said[:cut], said[cut + 2 :]) if cut > 0 else (said, "change the recipe's section")


def _context(recipe: Recipe, base: Base) -> list[CheckFinding]:
    if base.context is None:
        return []
    lengths = {name: filled(settings.resolved().max_length) for name, settings in recipe.trained.items()}
    long = [name for name, length in lengths.items() if length > base.context]
    if long:
        ends = not all(trained_sections()[name].leaves_out_long_rows for name in long)
        return [
            warning(
                "context",
                f"{', '.join(f'{name}.max_length {lengths[name]:,}' for name in long)}, and the model's context holds "
                f"{base.context:,} tokens",
                f"set max_length to at most {base.context}: a longer row {'ends the training' if ends else 'is left out'}",
            )
        ]
    return [ok("context", f"max_length fits the model's context of {base.context:,} tokens")]


def _template(recipe: Recipe, directory: Path, system_share: float, has_tools: bool) -> list[CheckFinding]:
    """Renders the chat template as training does: two turns, plus a system prompt and tools if the logs have them."""
    from huggingface_hub.errors import StrictDataclassError

    from model_ops.models import load_tokenizer

    try:
        tokenizer = load_tokenizer(directory)
    except StrictDataclassError as error:  # transformers looks at the config before it looks at the tokenizer
        said = " ".join(str(error).split()).rpartition("ValueError: ")[2]
        return [problem(CHECK, f"transformers refuses {directory / 'config.json'}: {said}", "copy the model's own config.json")]
    except ModelError as error:
        return [problem("chat template", str(error), "put tokenizer.json and chat_template.jinja into the model's directory")]
    if not tokenizer.chat_template:
        return []  # reported with the files
    findings = [_rendered(tokenizer, "two turns", TURNS, None, ("first answer", "second answer"), True)]
    if system_share:
        system = [{"role": "system", "content": "stay polite"}, *TURNS[:2]]
        too_many = system_share > recipe.datasets.sft.most_unrenderable
        findings.append(_rendered(tokenizer, "a system prompt", system, None, ("stay polite",), too_many))
    if has_tools:
        findings.append(_rendered(tokenizer, "tools and a call", CALLS, [TOOL], ("find_booking", "QX7", "seat 12A"), False))
    return findings


def _rendered(
    tokenizer: Any,
    what: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    wanted: tuple[str, ...],
    needed: bool,
) -> CheckFinding:
    from model_ops.jobs import ModelError
    from model_ops.rendering import ChatTemplate, Row, Unrenderable, learnt_turns, special_tokens

    row = Row("check", messages, tools)
    remedy = f"put a chat_template.jinja that renders {what} into the model's directory"
    find = problem if needed else warning
    try:
        turns = learnt_turns(row, ChatTemplate.of(tokenizer))
    except ModelError as error:
        return find("chat template", f"it refuses {what}: {error}", remedy)
    except Unrenderable as error:
        return find("chat template", f"such rows are left out: {what}: {error}", remedy)
    text = "".join(turn.context + turn.answer for turn in turns)
    missing = [word for word in wanted if word not in text]
    if missing:
        return find("chat template", f"it loses parts of {what} ({', '.join(missing)})", remedy)
    if needed and turns[0].answer.startswith(tuple(special_tokens(tokenizer))) and "assistant" in turns[0].answer:
        return warning("chat template", "it adds no generation prompt: a server would not know that the answer begins", remedy)
    return ok("chat template", f"{what}: rendered, and the answers are found")
