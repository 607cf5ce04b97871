"""Operation `quantize`: a model in, the same model with quantized weights out, in the compressed-tensors layout servers load.

The scheme (`model_ops.quantization`) encodes one weight at a time, so memory holds one tensor, not the model. With any method
but rtn the codes are chosen for what layers read in calibration rows (`model_ops.calibration`), while memory holds one block at
a time; AWQ and SmoothQuant change norms and biases, too. Under torchrun (settings.mesh) processes share the rows and the
matrices of a block, and the first one writes the directory. All that is no Linear layer or matrix of an expert stays as it is.
"""

import itertools
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model_ops.calibration import (
    AutoPlan,
    CacheRanges,
    CalibratedWeights,
    calibrated_weights,
    calibration_documents,
    distil_rounding,
    show,
)
from model_ops.documents import MICRO_BATCH_TOKENS, to_batches
from model_ops.families import PACKED, unquantized_layer
from model_ops.files import (
    TORCH_NAMES,
    Layout,
    TensorFileError,
    TensorHeader,
    read_directory,
    renamed_when_complete,
    template_files,
    write_stream,
)
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.machine import products_dtype
from model_ops.models import gguf_file, load_blockwise, load_model, training_device
from model_ops.operations.quantize_settings import FLOAT, QuantizeSettings
from model_ops.parallel import World
from model_ops.quantization import (
    SCALES,
    SCHEMES,
    BlockLayers,
    Scheme,
    announce,
    block_layers,
    cache_layers,
    fused_layers,
    model_of_config,
)

FLOAT_DTYPES = ("BF16", "F16", "F32")
"""Dtypes of weights that can be quantized."""
NOT_FINITE = "holds values that are not finite; train the model again"


CacheScales = Mapping[str, tuple[float, float]]
Schemes = Mapping[str, Scheme]
"""Layer in the checkpoint -> its scheme, of the layers that are quantized."""


@dataclass(frozen=True)
class CalibrationResult:
    """What calibration rows say; the parameters of `quantize_directory`."""

    schemes: Schemes
    codes: CalibratedWeights | None = None
    cache: CacheScales | None = None


def run(job: Job, progress: Progress) -> dict[str, Any]:
    """Quantize inputs["model"] into job.output; metrics: bytes before and after, tensors quantized, largest error."""
    settings = job.settings_as(QuantizeSettings)
    world, source = World.start(settings.mesh), job.inputs["model"]
    checked = checked_source(source, settings)
    measured = CalibrationResult(checked.schemes)
    metrics: dict[str, Any] = {}
    if settings.calibrates:
        measured, metrics = calibrate(job, settings, checked, progress, world)
    if not world.leads:
        return metrics
    if settings.distil.enabled:
        codes, of_training = distil_rounding(job, settings.distil, SCHEMES[settings.scheme], checked.layers, progress)
        measured, metrics = replace(measured, codes=codes), metrics | of_training
    metrics |= quantize_directory(
        source, job.output, progress, measured.schemes, settings.mtp_layer, measured.codes, measured.cache
    )
    if settings.gguf:
        metrics["gguf_bytes"] = gguf_file.write_gguf(source, job.output / gguf_file.FILE)
    return metrics


@dataclass(frozen=True)
class QuantizableModel:
    """A model directory that the settings can quantize."""

    kind: str
    """Its model_type."""
    headers: dict[str, TensorHeader]
    layers: BlockLayers
    schemes: Schemes
    """Empty for scheme auto, whose plan chooses them."""
    plan: AutoPlan | None = None
    """Plan of scheme auto; None for a single scheme."""


def checked_source(source: Path, settings: QuantizeSettings) -> QuantizableModel:
    """Reads config and file headers. Raises ModelError, one sentence, if the settings cannot quantize the directory."""
    if settings.gguf:
        gguf_file.check_gguf(source)
    config, headers, layers = _read(source)
    kind: str = config["model_type"]
    if settings.budget is not None:  # scheme auto
        options = [None if name == FLOAT else SCHEMES[name] for name in dict.fromkeys(settings.candidates)]
        checked = QuantizableModel(kind, headers, layers, {}, AutoPlan.of(layers, headers, options, settings.budget))
    else:
        checked = QuantizableModel(kind, headers, layers, of_each_layer(SCHEMES[settings.scheme], layers))
    _output_layout(source, headers, layers, checked.schemes, kind)
    return checked


def calibrate(
    job: Job, settings: QuantizeSettings, checked: QuantizableModel, progress: Progress, world: World
) -> tuple[CalibrationResult, dict[str, Any]]:
    """What calibration rows say, and the numbers to report. Raises ModelError before weights are read if no row can
    calibrate."""
    source, layers, schemes = job.inputs["model"], checked.layers, checked.schemes
    if "dataset" not in job.inputs:
        raise ModelError(
            "methods other than rtn, scheme auto, and kv_cache need a dataset to calibrate with: give one, or set "
            "quantize.method to rtn, choose another scheme, and leave quantize.kv_cache out"
        )
    if settings.kv_cache:
        cache_layers(layers.matrices)
    documents = calibration_documents(
        job.inputs["dataset"],
        source,
        settings.calibration_rows,
        settings.calibration_length,
        settings.seed,
        job.inputs.get("served"),
    )
    if len(documents) < settings.calibration_rows:
        progress.event(
            "note",
            message=f"calibration uses {len(documents):,} rows, all that the training split has for this "
            f"model; quantize.calibration_rows asks for {settings.calibration_rows:,}",
        )
    # a family that carries a state along a row is shown one conversation at a time
    batches = to_batches(documents, MICRO_BATCH_TOKENS if checked.kind in PACKED else 1)
    metrics: dict[str, Any] = {"calibration_rows": len(documents), "calibration_tokens": sum(map(len, documents))}
    dtype, work = calibration_dtype(checked.headers, world.device), job.output / ".work"
    if checked.plan is not None:
        whole = load_model(source, dtype=dtype, device=world.device).requires_grad_(False)
        schemes, of_search = checked.plan.choose(whole, documents, work / "auto", progress)
        metrics |= of_search
        del whole

    def stop_if_requested() -> None:
        if world.greatest([float(progress.stop_requested)])[0]:  # all processes stop at the same place
            raise Stopped

    def after_block(done: int, total: int) -> None:
        progress.report("calibrate", done, total, "blocks")
        stop_if_requested()

    model = load_blockwise(source, dtype, world.device)
    # with the new weights, since scales of inputs change the range of values
    cache = CacheRanges(cache_layers(layers.matrices)) if settings.kv_cache else None
    watches, codes = [] if cache is None else [cache], None
    if settings.method not in (None, "rtn"):
        codes = calibrated_weights(
            model, layers, schemes, batches, work / "blocks", settings.method, after_block, stop_if_requested, watches, world
        )
        if codes.errors:
            worst = max(codes.errors, key=lambda error: error.calibrated)
            metrics |= {
                "worst_layer": worst.layer,
                "worst_layer_error": worst.calibrated,
                "output_error": sum(error.calibrated for error in codes.errors) / len(codes.errors),
                "output_error_rounded": sum(error.rounded for error in codes.errors) / len(codes.errors),
            }
    elif watches:
        show(model, batches, watches, world, after_block)
    return CalibrationResult(schemes, codes, None if cache is None else cache.scales(world)), metrics


def calibration_dtype(headers: dict[str, TensorHeader], device: torch.device) -> torch.dtype:
    """The dtype that layers are shown calibration rows in: that in which a server computes what it does not quantize, or
    float32 where that is faster."""
    stored_half = any(header.dtype in ("BF16", "F16") for header in headers.values())
    return products_dtype("auto", device) if stored_half else torch.float32


def quantize_directory(
    source: Path,
    output: Path,
    progress: Progress,
    scheme: Scheme | Schemes = SCHEMES["w8a8"],
    mtp_layer: bool = False,
    calibrated: CalibratedWeights | None = None,
    cache: CacheScales | None = None,
) -> dict[str, Any]:
    """Writes the quantized copy of a model directory. scheme: of all layers, or of each layer that is quantized. mtp_layer:
    config.json says, too, that a multi-token-prediction layer that is served with this model is not quantized. calibrated: the
    stored tensors of some layers, and what else they changed; other layers are rounded. cache: attention module -> scales of
    its keys and values in an FP8 cache (None: the cache is not quantized).

    Raises ModelError where the model is of an unknown architecture, already quantized, or holds a Linear that is not
    a finite float matrix."""
    config, headers, layers = _read(source)
    schemes = of_each_layer(scheme, layers)
    layout = _output_layout(source, headers, layers, schemes, config["model_type"])
    scales = {
        f"{layer}.{part}": scale for layer, pair in (cache or {}).items() for part, scale in zip(SCALES, pair, strict=True)
    }
    layout |= dict.fromkeys(scales, ("F32", (1,)))
    output.mkdir(parents=True, exist_ok=True)
    errors: list[float] = []
    with renamed_when_complete(output / "model.safetensors") as temporary:
        encoded = _quantized_tensors(headers, schemes, errors, progress, calibrated)
        written = write_stream(
            temporary, layout, itertools.chain(encoded, ((name, struct.pack("<f", scale)) for name, scale in scales.items()))
        )
    # last: weights that cannot be quantized leave nothing behind
    template_files.copy_beside_weights(source, output, {"config.json", "manifest.json", "metrics.jsonl", "README.md"})
    (output / "config.json").write_text(json.dumps(config, indent=2))
    ignored = [*_ignored(schemes, layers), *([unquantized_layer(config)] if mtp_layer else [])]
    groups = _targets(schemes, layers)
    announce(groups, output, ignored, bool(scales))
    before = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    return {
        "bytes_before": before,
        "bytes_after": written,
        "size_share": written / before,
        "float_share": float_share(headers, schemes),
        "tensors_quantized": len(errors),
        "largest_relative_error": max(errors, default=0.0),
    }


def float_share(headers: Mapping[str, TensorHeader], schemes: Schemes) -> float:
    """Share of a model's values that stay float: embeddings, routers, experts that are stored as one weight."""
    values = {name: math.prod(header.shape) for name, header in headers.items()}
    return sum(count for name, count in values.items() if _layer(name) not in schemes) / sum(values.values())


def of_each_layer(scheme: Scheme | Schemes, layers: BlockLayers) -> Schemes:
    """The scheme of each layer that is quantized."""
    return dict.fromkeys(layers.matrices, scheme) if isinstance(scheme, Scheme) else scheme


def _targets(schemes: Schemes, layers: BlockLayers) -> dict[Scheme, list[str]]:
    """Each scheme with its layers: the class of all of them where there is one scheme, their names where there are more."""
    groups: dict[Scheme, list[str]] = {}
    for layer in layers.matrices:
        if layer in schemes:
            groups.setdefault(schemes[layer], []).append(layer)
    return (
        {scheme: ["Linear"] for scheme in groups}
        if len(groups) < 2
        else {scheme: _named(own, layers) for scheme, own in groups.items()}
    )


def _named(listed: Sequence[str], layers: BlockLayers) -> list[str]:
    """Layers by name; all experts of a module as one pattern, since 128 experts have 384 names."""
    names: dict[str, None] = dict.fromkeys(listed)
    for experts in layers.experts.values():
        own = list(itertools.chain(*experts))
        if all(layer in names for layer in own):
            for layer in own:
                del names[layer]
            names[f"re:{re.escape(own[0].partition('.experts.')[0])}\\.experts\\..*"] = None
    return list(names)


def _ignored(schemes: Schemes, layers: BlockLayers) -> list[str]:
    """What is not quantized, by the names of checkpoints; experts that a checkpoint stores as one weight also as servers name
    them, one by one."""
    return [
        "lm_head",
        *layers.floats,
        *_named([layer for layer in layers.matrices if layer not in schemes], layers),
        *(f"re:{re.escape(module)}\\..*" for module in layers.float_experts),
    ]


def _read(source: Path) -> tuple[dict[str, Any], dict[str, TensorHeader], BlockLayers]:
    """A model directory's config, the headers of its tensors, and which of its layers are quantized."""
    config = _checked_config(source)
    try:
        headers = read_directory(source)
    except TensorFileError as error:
        raise ModelError(str(error)) from error
    try:
        return config, headers, block_layers(model_of_config(config))
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from error


def _checked_config(source: Path) -> dict[str, Any]:
    try:
        config = json.loads((source / "config.json").read_text())
    except FileNotFoundError as error:
        raise ModelError(f"{source} has no config.json: it is no model directory") from error
    except ValueError as error:
        raise ModelError(f"{source / 'config.json'} is not JSON: copy it again") from error
    if "quantization_config" in config:
        raise ModelError(f"{source} is quantized already: start from its unquantized form")
    if not isinstance(config.get("model_type"), str):
        raise ModelError(f"{source / 'config.json'} names no model_type: copy it again")
    return config


def _output_layout(source: Path, headers: dict[str, TensorHeader], layers: BlockLayers, schemes: Schemes, kind: str) -> Layout:
    if not layers.matrices:
        raise ModelError(f"{source} is a {kind} model, and its blocks hold no Linear layer to quantize")
    layout: Layout = {}
    for name, header in headers.items():
        if _layer(name) in layers.matrices:
            if len(header.shape) != 2 or header.dtype not in FLOAT_DTYPES:
                raise ModelError(
                    f"{source}: {name} is {header.dtype} {list(header.shape)}, not a float matrix, and cannot be quantized"
                )
            try:
                scheme = schemes.get(_layer(name))  # None: it stays as it is
                stored = {"weight": (header.dtype, header.shape)} if scheme is None else scheme.stored(*header.shape)
            except ModelError as error:
                raise ModelError(f"{source}: {name}: {error}") from error
            layout |= {_stored_as(name, part): form for part, form in stored.items()}
        elif ".layers." in name and len(header.shape) > 1 and name not in layers.tensors:
            raise ModelError(
                f"{source}: {name} is a matrix of a block that its config.json does not describe, so nothing says "
                "whether to quantize it: save the model with transformers first"
            )
        else:
            layout[name] = (header.dtype, header.shape)
    missing = [layer for layer in layers.matrices if f"{layer}.weight" not in headers]
    if missing:
        raise ModelError(f"{source} lacks {missing[0]}.weight, which its config.json requires; copy the model again")
    for joined in fused_layers(layers.matrices):
        for layer in joined[:-1]:
            block = schemes[layer].output_block if layer in schemes else 1
            if layers.matrices[layer][0] % block:
                raise ModelError(
                    f"{source}: {layer} has {layers.matrices[layer][0]} outputs, no multiple of the "
                    f"{block} that share a scale, and servers join it with {joined[-1]}: choose "
                    "scheme fp8"
                )
    return layout


def _weight(header: TensorHeader) -> Tensor:
    """A stored float matrix as float32."""
    dtype = getattr(torch, TORCH_NAMES[header.dtype])
    return torch.frombuffer(bytearray(header.read()), dtype=dtype).view(header.shape).to(training_device()).float()


def _layer(name: str) -> str:
    """The layer of a weight; "" for a bias or another tensor."""
    return name.removesuffix(".weight") if name.endswith(".weight") else ""


def _stored_as(weight: str, part: str) -> str:
    """The name of a part of an encoded weight: model.layers.0.mlp.up_proj.weight, weight_scale -> ...up_proj.weight_scale."""
    return f"{weight.removesuffix('weight')}{part}"


def _quantized_tensors(
    headers: dict[str, TensorHeader],
    schemes: Schemes,
    errors: list[float],
    progress: Progress,
    calibrated: CalibratedWeights | None,
) -> Iterator[tuple[str, bytes]]:
    device = training_device()
    for done, (name, header) in enumerate(headers.items(), start=1):
        scheme = schemes.get(_layer(name))
        if scheme is not None:
            layer = scheme.load_layer()
            weight = _weight(header)
            if not torch.isfinite(weight.sum()) and not torch.isfinite(weight).all():  # the sum alone is much faster
                raise ModelError(f"{header.file}: {name} {NOT_FINITE}")
            layout = scheme.stored(*header.shape)
            if calibrated is not None and _layer(name) in calibrated.files:
                stored = {part: tensor.to(device) for part, tensor in calibrated.stored(_layer(name), list(layout)).items()}
                weight = calibrated.scaled(_layer(name), weight)
            else:
                try:
                    stored = layer.encode(weight)
                except ModelError as error:
                    raise ModelError(f"{header.file}: {name}: {error}") from error
            error = (layer.decode(stored) - weight).norm() / weight.norm().clamp(min=1e-12)
            errors.append(error.item())
            for part, tensor in stored.items():
                yield _stored_as(name, part), tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()
        elif calibrated is not None and name in calibrated.replaced:
            values = calibrated.replacement(name).to(getattr(torch, TORCH_NAMES[header.dtype]))
            yield name, values.view(torch.uint8).numpy().tobytes()
        else:
            yield name, header.read()
        progress.stop_if_requested()
        progress.report("quantize", done, len(headers), "tensors")
