"""`millrace plan`: predicts the memory and speed of training a stage on given devices, from the model's config alone: of a
directory, of `tiny`, or of a Hub id in the local cache, else in model_ops/families/known_models.json.

    print_plan(plan_recipe(recipe, "8xH100", stage="sft"), recipe, "sft", console)
"""

import json
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from model_ops.adapters import model_places
from model_ops.families import known_config
from model_ops.jobs import Misuse, ModelError, counted, duration, filled
from model_ops.machine import Device, parse_devices
from model_ops.planning import GIB, MemoryOf, MemoryPlan, Needs, choose
from model_ops.training import TrainingSettings
from pipelines.contract import Recipe
from pipelines.planning.stage_times import tiny_config
from resources.artefacts import Registry
from resources.lake import LakeLayout
from resources.manifests import ManifestError
from resources.stages import planned_sections, trained_sections

BAR = 28
SAID = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "saved": "activations, kept",
    "at_work": "activations, at work",
    "gathered": "gathered blocks",
    "teacher": "teacher",
    "device": "context, libraries",
    "spare": "fragmentation",
}
METHODS = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}


class PlanError(Misuse):
    """The stage cannot be planned; the message says why."""


def plan_recipe(recipe: Recipe, gpus: str, stage: str | None = None) -> MemoryPlan:
    """The plan of one stage, by default the first that the recipe trains. Raises PlanError or UnknownDevice if it cannot be
    planned, NothingFits with the nearest setup that fits."""
    stage = planned_stage(recipe, stage)
    count, device = parse_devices(gpus)

    try:
        return choose(needs_of_stage(recipe, stage, getattr(recipe, stage).resolved(), device), count, device)
    except ModelError as error:
        raise PlanError(f"base_model {recipe.base_model}: {error}") from error


def needs_of_stage(recipe: Recipe, stage: str, settings: Any, device: Device) -> Needs:
    """What the training of a section needs. settings: resolved. Raises PlanError or ModelError."""
    from model_ops.planning import Training, count_weights, needs_of, refuse_unmatched_targets, refuse_untrainable

    config, name = config_of(recipe)
    refuse_untrainable(config.to_dict())
    distils = trained_sections()[stage].takes_model_as == "teacher"
    if not distils and getattr(settings, "method", "full") != "full" and settings.lora.targets:
        refuse_unmatched_targets(config, settings.lora.targets)
    teacher = 0
    if distils:
        read_once = settings.teacher != "online" and not settings.on_policy.share
        teacher = 0 if read_once else count_weights(config).all
        config, name = student_of(recipe, config, name)
    return needs_of(config, Training.of(settings), name, "cpu" if device.is_cpu else "cuda", teacher=teacher)


def planned_stage(recipe: Recipe, asked: str | None) -> str:
    """The section of the stage that is planned, by default the first that the recipe trains. Raises PlanError if the recipe
    does not train it."""
    sections = planned_sections()
    trained = [name for name in sections if name in recipe.trained]
    usual = [name for name, stage in sections.items() if name in trained or not stage.opt_in]
    if asked is None and not trained:
        raise PlanError(f"this recipe switches off {' and '.join(usual)}; enable one of them to plan it")
    if asked is None or asked in trained:
        return asked or trained[0]
    if asked in usual:
        raise PlanError(f"--stage {asked}: this recipe switches it off ({sections[asked].switch}.enabled)")
    none = f"this recipe has no {asked}; " if asked in sections else ""
    raise PlanError(f"--stage {asked}: {none}choose {' or '.join(usual)}")


def student_of(recipe: Recipe, teacher: Any, name: str) -> tuple[Any, str]:
    """The student's config and name: of its base, or of the teacher, cut. Changes the teacher's config."""
    from model_ops.pruning import narrower_config, widths_of

    if recipe.student.base is not None:
        return _read_config(recipe.student.base, "student.base")
    try:
        teacher.num_hidden_layers = recipe.student.depth(teacher.num_hidden_layers)
    except ValueError as error:
        raise PlanError(str(error)) from error
    if getattr(teacher, "layer_types", None):
        teacher.layer_types = teacher.layer_types[: teacher.num_hidden_layers]
    return narrower_config(
        teacher, widths_of(teacher, recipe.student.mlp_width, recipe.student.heads, recipe.student.hidden_size)
    ), name


def print_plan(plan: MemoryPlan, recipe: Recipe, stage: str, console: Console, tokens: float | None = None) -> None:
    """Prints the table, the reasons, and YAML to paste. tokens: of the dataset's training rows; None if unknown."""
    needs, setup, device = plan.needs, plan.setup, plan.device
    devices = "this machine's CPU" if device.is_cpu else f"{plan.count}x{device.name}"
    said = f"   {METHODS[needs.method]} of {needs.name}, "
    message = f"{_count(needs.counts.all)} weights, rows of {needs.max_length:,} tokens, on {devices}"
    console.print(Text.assemble((f"{recipe.workload} · {stage}", "bold"), said, message))
    console.print(Padding(_memory_table(plan.memory, device.memory_gib), (1, 0, 1, 2)))
    if plan.tokens_per_second is not None:
        used = setup.mesh.processes
        each = f" ({_two_digits(plan.tokens_per_second / used):,} a device)" if used > 1 else ""
        share = plan.tokens_per_second * needs.flops_per_token / (used * filled(device.bf16_tflops) * 1e12)
        whose = "the devices'" if used > 1 else "the device's"
        console.print(
            f"  about [bold]{_two_digits(plan.tokens_per_second):,}[/] tokens/s{each}, an estimate: "
            f"{_flops(needs.flops_per_token)} a token at an assumed {share:.{0 if share >= 0.1 else 1}%} of {whose} "
            "bf16 peak",
            highlight=False,
        )
        settings = getattr(recipe, stage).resolved()
        seconds = estimated_seconds(plan, settings, tokens)
        epochs = f", for {settings.epochs:g} epochs of about {tokens:,.0f} tokens" if tokens and settings.steps is None else ""
        console.print(
            f"  cost: about {duration(seconds)} on {counted(used, 'device')}{epochs}"
            if seconds is not None
            else "  [dim]cost unknown: epochs depend on the dataset, which the lake does not hold yet; millrace run "
            "RECIPE --select +sft_dataset makes it without training[/]",
            highlight=False,
        )
    else:
        console.print("  [dim]no estimate of speed: this device's peak is not known[/]", highlight=False)
    grid = Table.grid(padding=(0, 1))
    for reason in plan.reasons:
        grid.add_row(" [green]•[/]", Text(reason))
    console.print(Padding(grid, (1, 0, 1, 1)))
    console.print(f"[dim]to paste into the recipe ({setup.mesh}):[/]", highlight=False)
    console.print(
        yaml.safe_dump({stage: settings_of(plan)}, sort_keys=False, default_flow_style=False).rstrip(),
        markup=False,
        highlight=False,
    )


def estimated_seconds(plan: MemoryPlan, settings: TrainingSettings, tokens: float | None = None) -> float | None:
    """Estimated seconds of the training; None without an estimate of speed, and for epochs of unknown rows. settings: resolved.
    tokens: of the dataset's training rows; None if unknown."""
    if plan.tokens_per_second is None:
        return None
    if settings.steps is not None:
        return settings.steps * filled(settings.tokens_per_step) / plan.tokens_per_second
    return filled(settings.epochs) * tokens / plan.tokens_per_second if tokens else None


def settings_of(plan: MemoryPlan) -> dict[str, Any]:
    """The chosen setup as the stage's settings."""
    setup = plan.setup
    mesh = setup.mesh.axes()
    return {
        **({"mesh": mesh} if mesh else {}),
        "micro_batch_tokens": setup.micro_batch_tokens,
        "activation_checkpointing": setup.checkpointing,
        **({"offload_activations": True} if setup.offload else {}),
    }


def as_json(plan: MemoryPlan, recipe: Recipe, stage: str, tokens: float | None = None) -> str:
    """The plan as JSON. tokens: of the dataset's training rows; None if unknown."""
    return json.dumps(
        {
            "workload": recipe.workload,
            "stage": stage,
            "model": plan.needs.name,
            "method": plan.needs.method,
            "weights": plan.needs.counts.all,
            "devices": plan.count,
            "devices_used": plan.setup.mesh.processes,
            "device": plan.device.name,
            "device_gib": round(plan.device.memory_gib, 3),
            "memory_gib": plan.memory.as_gib(),
            "settings": settings_of(plan),
            "tokens_per_second_estimate": plan.tokens_per_second,
            "seconds_estimate": estimated_seconds(plan, getattr(recipe, stage).resolved(), tokens),
            "dataset_tokens_estimate": None if tokens is None else round(tokens),
            "flops_per_token": plan.needs.flops_per_token,
            "reasons": list(plan.reasons),
        }
    )


def _memory_table(memory: MemoryOf, room_gib: float) -> Group:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim", pad_edge=False)
    table.add_column("memory of one device")
    table.add_column("GiB", justify="right")
    table.add_column(f"of {room_gib:,.1f} GiB")
    before = 0.0
    for name, said in SAID.items():
        size = getattr(memory, name) / GIB
        if size < 0.0005:
            continue
        table.add_row(said, f"{size:,.2f}", _bar(before, size, room_gib))
        before += size
    table.add_section()
    table.add_row(
        Text("in all", style="bold"),
        Text(f"{before:,.2f}", style="bold"),
        Text(f"{before / room_gib:z.0%}", style="bold green" if before < 0.9 * room_gib else "bold yellow"),
    )
    return Group(table)


def _bar(before: float, size: float, room: float) -> Text:
    start, end = round(before / room * BAR), round((before + size) / room * BAR)
    block = "█" * (end - start) or "▏"
    return Text.assemble(("·" * start, "dim"), (block, "cyan"), ("·" * max(0, BAR - start - len(block)), "dim"))


def _count(weights: int) -> str:
    return f"{weights / 1e9:.2f}B" if weights >= 1e9 else f"{weights / 1e6:.1f}M"


def _flops(of_a_token: float) -> str:
    return f"{of_a_token / 1e9:,.1f} GFLOP" if of_a_token >= 1e9 else f"{of_a_token / 1e6:,.0f} MFLOP"


def _two_digits(value: float) -> int:
    digits = max(0, len(str(int(value))) - 2)
    return round(value / 10**digits) * 10**digits


def config_of(recipe: Recipe) -> tuple[Any, str]:
    if recipe.base_model == "tiny":
        from transformers import AutoConfig

        return AutoConfig.for_model(**tiny_config(recipe.tiny)), "tiny"
    return _read_config(recipe.base_model, "base_model", recipe.base_revision)


def _read_config(name: str, key: str, revision: str | None = None) -> tuple[Any, str]:
    """The config of the model that a key of the recipe names, and the model's name. revision: of a model on a hub."""
    from transformers import AutoConfig

    try:
        *adapters, name = model_places(name)  # an adapter trains as its base model does
        at = None if adapters else revision
        config = AutoConfig.from_pretrained(name, revision=at or "main", local_files_only=True, trust_remote_code=False)
    except ModelError as error:
        raise PlanError(f"{key}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        if "/" in name and not name.startswith(("/", ".")):
            if (known := known_config(name)) is not None:
                return AutoConfig.for_model(**known), name.rpartition("/")[2]
            of = f" at revision {at}" if at else ""
            raise PlanError(
                f"{key} {name}{of} is an id on a hub, neither in the local cache nor among common models; "
                "a plan fetches nothing: name a directory instead, its config.json is enough"
            ) from error
        said = f"{key} {name} holds no config.json of a causal language model: {str(error).strip().splitlines()[0]}"
        raise PlanError(said) from error
    return config, name.rstrip("/").rpartition("/")[2]


CHARACTERS_A_TOKEN = 4
COLUMNS = ("messages", "text", "tools", "prompt", "chosen", "rejected")


def dataset_tokens(lake: LakeLayout | None, workload: str, dataset: str = "sft_dataset") -> float | None:
    """Tokens of the training rows of the current dataset: counted where rows have token ids, else estimated by characters.
    Columns are read one after the other."""
    if lake is None:
        return None
    registry = Registry(lake, workload)
    try:
        file = registry.directory(registry.current("dataset", dataset)) / "train.parquet"
        lake.mirror.fetch_files([file])
        rows = pq.ParquetFile(file)
    except (ManifestError, OSError):
        return None
    total = 0.0
    for name in {*COLUMNS, "token_ids"} & set(rows.schema_arrow.names):
        measure = pc.list_value_length if name == "token_ids" else pc.utf8_length
        for batch in rows.iter_batches(columns=[name]):
            total += (pc.sum(measure(batch.column(0))).as_py() or 0) / (1 if name == "token_ids" else CHARACTERS_A_TOKEN)
    return total
