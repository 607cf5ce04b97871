"""Operation `import_base`: imports a base model from a Hugging Face directory or from the Hugging Face Hub.

Only safetensors, JSON, Jinja and tokenizer files are imported, never code or pickles, and every tensor is checked against the
config. An adapter in PEFT's format is merged into its base, quantized weights become bfloat16, and multi-token-prediction
layers (`model_ops.families.mtp_tensors`) go to mtp/. HF_HUB_OFFLINE and HF_ENDPOINT are respected.
"""

import os
import shutil
from pathlib import Path

from model_ops.adapters import base_of_adapter, is_adapter
from model_ops.families import LAYER, has_layers, set_apart
from model_ops.files import TensorFileError, hub, read_directory, renamed_when_complete, write_json
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import check_model, float_form, headers, load_tokenizer, read_config, write_float_weights
from model_ops.operations.import_base_settings import ImportBaseSettings
from model_ops.planning import refuse_untrainable

LEFT = ("manifest.json",)
"""Files that are not copied: with a manifest.json the copy would count as a finished artefact too early."""


def import_quantized(source: Path, output: Path, mtp_layer: bool, progress: Progress) -> dict[str, int]:
    """Writes a quantized base model with bfloat16 weights, and checks the result as any base model. Raises ModelError for a
    quantization that cannot be read."""
    config = read_config(source)
    if mtp_layer or has_layers(config):
        raise ModelError(
            f"{source} is quantized and has multi-token-prediction layers, which are not read together: name the "
            "model before it was quantized"
        )
    try:
        form = float_form(config, read_directory(source))
    except TensorFileError as error:
        raise ModelError(str(error)) from error
    progress.event(
        "note",
        message=f"{source} is quantized ({form.title}): it is read as bfloat16, and a stage that quantizes "
        "rounds its weights a second time; name its unquantized form if there is one",
    )
    output.mkdir(parents=True, exist_ok=True)
    written = write_float_weights(form, output / "model.safetensors", progress)
    left = {*LEFT, "config.json", "model.safetensors.index.json", "quantization_config.json", "quant_config.json"}
    for path in sorted({path for pattern in hub.MODEL_FILES for path in source.glob(pattern) if path.suffix != ".safetensors"}):
        if path.is_file() and path.name not in left:
            place_file(path, output / path.relative_to(source), link=False)
    plain = {name: value for name, value in config.items() if name not in ("quantization_config", "torch_dtype")}
    write_json(output / "config.json", {**plain, "dtype": "bfloat16"})
    return {**check_base(output), "dequantized_bytes": written}


def check_base(directory: Path) -> dict[str, int]:
    """Checks that a base model has every tensor of its config, a matching tokenizer and a chat template, and that its family is
    known or can be trained. Raises ModelError for the first problem."""
    check_model(directory)
    tokenizer = load_tokenizer(directory)
    if not tokenizer.chat_template:
        raise ModelError(f"{directory} has no chat template; put a chat_template.jinja into the directory")
    shapes = headers(directory)
    config = read_config(directory)
    vocab_size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    if vocab_size is not None and len(tokenizer) > vocab_size:
        raise ModelError(
            f"{directory}: the tokenizer has {len(tokenizer)} tokens, but vocab_size is {vocab_size}; copy "
            "the tokenizer that belongs to the model"
        )
    try:
        refuse_untrainable(config)
    except ModelError as error:
        raise ModelError(f"{directory}: {error}") from error
    parameters = 0
    for shape in shapes.values():
        size = 1
        for dim in shape:
            size *= dim
        parameters += size
    return {"tensors": len(shapes), "parameters": parameters, "vocab_size": vocab_size or len(tokenizer)}


def place_file(source: Path, target: Path, link: bool) -> None:
    """Hard-links or copies a file; it appears under its final name only when it is complete."""
    real = source.resolve()
    with renamed_when_complete(target) as temporary:
        if link and real.stat().st_dev == target.parent.stat().st_dev:
            os.link(real, temporary)
        else:
            shutil.copyfile(real, temporary)


def run(job: Job, progress: Progress) -> dict[str, int]:
    """Copies the model into the job's output and checks it. Raises ModelError if it cannot be used."""
    settings = job.settings_as(ImportBaseSettings)
    local = Path(settings.model).expanduser()
    from_hub = not local.is_dir()
    source = download(settings.model, settings.revision) if from_hub else local
    if is_adapter(source):
        return import_adapter(source, job.output, settings.mtp_layer, progress)
    if read_config(source).get("quantization_config") is not None:
        return import_quantized(source, job.output, settings.mtp_layer, progress)
    layered = has_layers(read_config(source))
    if settings.mtp_layer and not (layered and any(name.startswith(LAYER) for name in headers(source))):
        raise ModelError(
            f"{settings.model} has no supported multi-token-prediction layer (MiMo-7B has one): choose another "
            "architecture for the drafter, such as eagle3"
        )
    counts = {} if layered else check_base(source)
    written = set_apart(source, job.output) if layered else set()
    left = {*LEFT, *written}
    files = sorted(
        {path for pattern in hub.MODEL_FILES for path in source.glob(pattern) if path.is_file() and path.name not in left}
    )
    for done, path in enumerate(files):
        progress.report("import", done, len(files), "files")
        progress.stop_if_requested()
        place_file(path, job.output / path.relative_to(source), link=from_hub)
    progress.report("import", len(files), len(files), "files")
    return counts or check_base(job.output)


def import_adapter(adapter: Path, output: Path, mtp_layer: bool, progress: Progress) -> dict[str, int]:
    """Writes an adapter's base model with the adapter merged into it, and checks the result as any base model."""
    from model_ops.operations.merging.adapter_merge import merge_adapter

    name = base_of_adapter(adapter)
    base = Path(name) if Path(name).is_dir() else download(name, None)
    if mtp_layer or has_layers(read_config(base)):
        raise ModelError(
            f"the base model of the adapter in {adapter} carries multi-token-prediction layers, which merging "
            "would drop: merge the adapter with its own trainer, and name the merged model"
        )
    progress.report("merge", 0, 1, "adapters")
    merge_adapter(base, adapter, output)
    progress.report("merge", 1, 1, "adapters")
    return check_base(output)


def download(model: str, revision: str | None) -> Path:
    """The snapshot of a Hub model in the local cache. Raises ModelError if it cannot be fetched."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(hub.MODEL_FILES)))
    except HFValidationError as error:
        raise ModelError(f"{model} is neither a directory nor a Hugging Face id (owner/name); give one of these") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{model} is not in the local cache and the Hugging Face Hub cannot be reached; give a directory, or go online"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(
            f"{model} cannot be fetched from the Hugging Face Hub ({type(error).__name__}); "
            "check the id, access to it, and the network, or give a directory"
        ) from error
