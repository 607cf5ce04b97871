"""base_model from elsewhere: a directory in the Hugging Face layout, or an id on the Hugging Face Hub.

    {"operation": "import_base", "output": "...", "settings": {"model": "Qwen/Qwen3-0.6B"}}

Only safetensors, JSON, Jinja and tokenizer files are taken, never code or pickles. What arrives is checked tensor by
tensor against its config, by the files' headers; a tokenizer and a chat template must be there. Files of the Hub's
cache are hard-linked, files of a directory are copied, since their owner may change them. HF_HUB_OFFLINE and
HF_ENDPOINT are honoured. Of a checkpoint with multi-token-prediction layers (`model_ops.models.mtp_tensors`) the body becomes
the model, and the layers lie in mtp/ beside it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from model_ops.atomic_files import renamed_when_complete
from model_ops.errors import ModelError
from model_ops.job import Job
from model_ops.models.model_directory import check_model, headers, load_tokenizer, read_config
from model_ops.models.mtp_tensors import LAYER, has_layers, set_apart
from model_ops.operations.import_base_settings import ImportBaseSettings
from model_ops.progress import Progress

TAKEN = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")

LEFT = ("manifest.json",)
"""An artefact's own record: a copy of it would make the copy look finished before it is."""


def run(job: Job, progress: Progress) -> dict[str, float | int]:
    """Brings the model into the job's output and checks it. Raises ModelError naming what is wrong with it."""
    settings = job.settings_as(ImportBaseSettings)
    local = Path(settings.model).expanduser()
    from_hub = not local.is_dir()
    source = download(settings.model, settings.revision) if from_hub else local
    layered = has_layers(read_config(source))
    if settings.mtp_layer and not (layered and any(name.startswith(LAYER) for name in headers(source))):
        raise ModelError(f"{settings.model} carries no multi-token-prediction layer that is known here (MiMo-7B does): take "
                         "another architecture for the drafter, such as eagle3")
    found = {} if layered else check_base(source)
    written = set_apart(source, job.output) if layered else set()
    left = {*LEFT, *written}
    files = sorted({path for pattern in TAKEN for path in source.glob(pattern) if path.is_file() and path.name not in left})
    for done, path in enumerate(files):
        progress.report("import", done, len(files), "files")
        progress.stop_if_requested()
        _place(path, job.output / path.name, link=from_hub)
    progress.report("import", len(files), len(files), "files")
    return found or check_base(job.output)


def check_base(directory: Path) -> dict[str, int]:
    """What a base model must be: every tensor its config asks for, a tokenizer that fits, a chat template.

    Raises ModelError naming the first thing that is missing or wrong.
    """
    check_model(directory)
    tokenizer = load_tokenizer(directory)
    if not tokenizer.chat_template:
        raise ModelError(f"{directory} has no chat template; put a chat_template.jinja beside its tokenizer")
    shapes = headers(directory)
    config = read_config(directory)
    vocab_size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    if vocab_size is not None and len(tokenizer) > vocab_size:
        raise ModelError(f"{directory}: the tokenizer has {len(tokenizer)} tokens, the model's vocabulary {vocab_size}")
    parameters = 0
    for shape in shapes.values():
        size = 1
        for dim in shape:
            size *= dim
        parameters += size
    return {"tensors": len(shapes), "parameters": parameters, "vocab_size": vocab_size or len(tokenizer)}


def download(model: str, revision: str | None) -> Path:
    """The snapshot of a Hub model in the local cache. Raises ModelError where it cannot be had."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(TAKEN)))
    except HFValidationError as error:
        raise ModelError(f"{model} is no directory and no Hugging Face id (owner/name)") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(f"{model} is not in the local cache and the Hugging Face Hub cannot be reached; "
                         "give a directory, or go online") from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(f"{model} cannot be fetched from the Hugging Face Hub ({type(error).__name__}); "
                         "check the id, access to it, and the network, or give a directory") from error


def _place(source: Path, target: Path, link: bool) -> None:
    """Puts a file under its final name only when it is whole."""
    real = source.resolve()
    with renamed_when_complete(target) as temporary:
        if link and real.stat().st_dev == target.parent.stat().st_dev:
            os.link(real, temporary)
        else:
            shutil.copyfile(real, temporary)
