"""Opens the engine that a recipe names: in process, alone or with a drafter; a vLLM server of its own; servers at addresses;
processes that sample while the model is in training."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from model_ops.adapters import save_adapter
from model_ops.answers import (
    Engine,
    EngineProcesses,
    EngineStart,
    InProcessEngine,
    MeshEngine,
    RolloutDrafting,
    Tokens,
    VllmEngine,
    VllmServer,
    copy_merged,
    decoding_twin,
)
from model_ops.drafting import baselines
from model_ops.files import read_directory
from model_ops.jobs import ModelError, Progress, filled
from model_ops.models import read_config, save_model
from model_ops.parallel import World
from model_ops.reinforcement import CANARY_GAP, LOOKUP_DRAFTERS, RftSettings, RolloutServerSettings
from model_ops.serving import NotRunnable, ServerFailed, dtype_words, lora_flags, program_of, running_server, server_environment
from model_ops.speculators import architecture_of, load_draft_model
from model_ops.training import TuningSettings

MOST_DRAFTS = 8
"""Tokens drafted at a time; the decoder drafts fewer where fewer pay."""
ADAPTERS = 3
"""In the server's memory: the one that samples, the one before, and the one that is loaded."""
NAME = "policy"


def open_engine(
    settings: RftSettings,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    base: Path,
    eos_ids: Collection[int],
    work: Path,
    opened: ExitStack,
    progress: Progress,
    world: World,
) -> Engine:
    """base: the directory that `model` was loaded from. work: folder for the weights that servers read, and for the server's
    log. On a mesh every process calls this, and the first one asks the engine inside `world.conduct`. Raises ModelError for a
    server that does not start or cannot be learnt from, and for a drafter of another model."""
    alone = world.mesh is None
    if settings.engine == "in_process":
        own = InProcessEngine(model, eos_ids, settings, rollout_drafting(settings.drafter, model, base))
        return own if alone else MeshEngine(own, world)
    adapters = settings.method == "lora" and alone
    if adapters:
        write = partial(save_adapter, model, filled(settings.lora), base=str(base))
    else:  # of a mesh, and of qlora, whose frozen weights are those of 4 bits
        twin = decoding_twin(model)
        world.parts["gather"] = partial(copy_merged, model, twin)
        if not world.leads:
            twin.to("meta")
            world.conduct(list)  # until the servers are there, or a stop was asked for
            return InProcessEngine(model, eos_ids, settings)  # never asked: only the first process asks servers

        def write(directory: Path) -> None:
            world.ask("gather")
            save_model(twin, tokenizer, directory, next(twin.parameters()).dtype)

    opened_engines: list[VllmEngine] = []

    def ask_servers() -> None:
        urls = settings.engine
        if urls == "vllm":
            progress.event("note", message="rft: vLLM starts, which takes a minute or two")
            urls = [opened.enter_context(own_server(settings, base, adapters, work / "vllm.log", progress))]
        servers = [VllmServer(url, adapters, filled(settings.max_length)) for url in urls]
        tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        if tied and not adapters and any(server.on_cpu for server in servers):
            raise ModelError(
                f"rft.engine: the head of {base.name} is its embeddings, and on a CPU vLLM 0.32 goes on with the old head when "
                f"it reloads weights: {'train with method lora, or ' if alone else ''}sample in_process"
            )
        engine = VllmEngine(servers, write, work / "policy", eos_ids, settings, adapters)
        opened.callback(engine.close)
        opened_engines.append(engine)

    world.conduct(ask_servers)
    return opened_engines[0]


def open_processes(
    settings: RftSettings,
    model: PreTrainedModel,
    base: Path,
    eos_ids: Collection[int],
    probe: Tokens,
    work: Path,
    opened: ExitStack,
) -> EngineProcesses:
    """Engines in processes of their own. On a CPU each takes its share of the job's threads from those of the training. probe:
    a text by which each exchange of weights is checked."""
    own = torch.get_num_threads()
    threads = max(1, own // (1 + settings.engines))
    if model.device.type == "cpu":
        opened.callback(torch.set_num_threads, own)
        torch.set_num_threads(max(1, own - settings.engines * threads))
    dumped = settings.model_dump(mode="json")
    start = EngineStart(
        base=str(base),
        tuning={name: dumped[name] for name in TuningSettings.model_fields},
        policy=str(work / "policy.safetensors"),
        eos_ids=sorted(eos_ids),
        temperature=settings.temperature,
        max_new_tokens=settings.max_new_tokens,
        batch_size=settings.batch_size,
        threads=threads,
        device=str(model.device),
    )
    engines = EngineProcesses(model, start, settings.engines, probe, settings.precision, CANARY_GAP, work)
    opened.callback(engines.close)
    return engines


@contextmanager
def own_server(settings: RftSettings, base: Path, adapters: bool, log: Path, progress: Progress) -> Iterator[str]:
    """The address of a vLLM server with the model in `base`, for as long as the block runs. adapters: whether it is to take
    them; one that does takes no whole weights."""
    asked = settings.server or RolloutServerSettings()
    words = list(asked.arguments)
    if settings.precision == "float32" and not any(word.partition("=")[0] == "--dtype" for word in words):
        words += ["--dtype", "float32"]
    words += dtype_words("vllm", base, words)
    if adapters:
        words += lora_flags.lora_words(filled(settings.lora).rank, ADAPTERS)
    chosen = ["--served-model-name", NAME, "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    if not any(word.partition("=")[0] == "--max-model-len" for word in words):
        chosen += ["--max-model-len", str(settings.max_length)]
    command = [*program_of("vllm", asked.python, "rft.server"), str(base.absolute()), *chosen, *words]
    environment = {**server_environment(), "VLLM_SERVER_DEV_MODE": "1", **lora_flags.LOADS_AT_RUNTIME}
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        check = progress.stop_if_requested
        with running_server(command, log=log, environment=environment, start_s=asked.start_s, check=check) as server:
            yield server.url
    except (NotRunnable, ServerFailed) as error:
        raise ModelError(f"rft.engine: vLLM does not serve {base.name}: {error}. Its log is {log}") from error


def rollout_drafting(name: str | None, model: PreTrainedModel, base: Path) -> RolloutDrafting | None:
    """The drafter that a recipe names: a lookup, or the directory of a trained one."""
    if name is None:
        return None
    if name in LOOKUP_DRAFTERS:
        return RolloutDrafting(lambda runner: baselines()[name], MOST_DRAFTS, 0.0)
    directory = Path(name)
    if (architecture := architecture_of(read_config(directory))) is not None:
        defects = architecture.verify(read_config(directory), read_directory(directory), read_config(base))
        if defects:
            raise ModelError(f"rft.drafter: {directory} does not draft for {base.name}: {defects[0]}")
    drafts = load_draft_model(directory).to(model.device)
    own, whole = (sum(parameter.numel() for parameter in each.parameters()) for each in (drafts, model))
    longest = min(drafts.longest_chain or MOST_DRAFTS, MOST_DRAFTS)

    def opened(runner):
        ready = drafts.ready_to_draft(runner.dtype).attach(runner)
        return ready.drafter()

    return RolloutDrafting(opened, longest, own / whole)
