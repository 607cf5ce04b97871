"""Operation `import_base`: imports a base model from a Hugging Face directory or from the Hugging Face Hub.

Only safetensors, JSON, Jinja and tokenizer files are imported, never code or pickles, and every tensor is checked against the
config. An adapter in PEFT's format is merged into its base, quantized weights become bfloat16, and multi-token-prediction
layers (`model_ops.families.mtp_tensors`) go to mtp/. HF_HUB_OFFLINE and HF_ENDPOINT are respected."""

from pathlib import Path

from model_ops.adapters import base_of_adapter, is_adapter
from model_ops.families import LAYER, has_layers, set_apart
from model_ops.files import hub
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import headers, read_config
from model_ops.operations.base_directory import LEFT, check_base, import_quantized, place_file
from model_ops.operations.import_base_settings import ImportBaseSettings


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
