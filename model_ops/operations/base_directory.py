"""Checks a base model's directory, and reads one with quantized weights. `import_base` and `distill` take base models."""

import os
import shutil
from pathlib import Path

from model_ops.families import has_layers
from model_ops.files import TensorFileError, hub, read_directory, renamed_when_complete, write_json
from model_ops.jobs import ModelError, Progress
from model_ops.models import check_model, float_form, headers, load_tokenizer, read_config, write_float_weights
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
