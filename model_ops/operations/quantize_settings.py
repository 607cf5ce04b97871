"""Settings of operation `quantize`. Importing this file imports no torch."""

from typing import Literal

from pydantic import Field, model_validator

from model_ops.calibration import DistilRoundingSettings
from model_ops.jobs import Seed, Settings
from model_ops.parallel import MeshSettings
from model_ops.quantization import SCHEMES

AUTO, FLOAT = "auto", "float"
FOR_INT4 = ("gptq", "awq", "awq_gptq")
"""Methods that choose codes of int4 weights."""


class QuantizeSettings(Settings):
    """Post-training quantization in the compressed-tensors layout."""

    enabled: bool = Field(True, description="false: the model is served as it was trained, without quantization")
    scheme: Literal[(*SCHEMES, AUTO)] = Field(  # type: ignore[valid-type]  # from the table
        "w8a8",
        description="auto: for each layer one of `candidates`, so that all cost least within `budget`. w8a8: int8 "
        "weights per output channel, int8 activations per token. w4a16: int4 weights, a scale for each 128 inputs of a channel "
        "(w4a16_g64, w4a16_g32: 64, 32). w8a16: int8 weights in groups of 128 (w8a16_channel: per channel). fp8: float8 "
        "weights per channel, float8 activations per token. fp8_block: float8 weights in blocks of 128 x 128, activations in "
        "groups of 128",
    )
    budget: float | None = Field(
        None, gt=0, lt=1, description="auto: bytes of the released weights, embeddings included, over their bytes in bfloat16"
    )
    candidates: list[Literal[(*SCHEMES, FLOAT)]] = Field(  # type: ignore[valid-type]  # from the table
        ["w4a16", "w4a16_g32", "w8a16", FLOAT],
        min_length=2,
        description="auto: schemes of which each layer gets one. float: "
        "it stays bfloat16. The endpoint has to load all of them",
    )
    method: Literal["gptq", "awq", "awq_gptq", "smoothquant", "rtn"] | None = Field(
        None,
        description="gptq: weights are rounded one column after another, and later columns make up for the error on "
        "calibration rows (int4 only). awq: inputs that matter are scaled up before weights are rounded to the nearest (int4 "
        "only). awq_gptq: both. smoothquant: inputs with large values are scaled down, which int8 activations need where a "
        "model has outliers (w8a8 only). rtn: each weight is rounded to the nearest. Left out: gptq for int4, rtn for all "
        "others",
    )
    kv_cache: Literal["fp8"] | None = Field(
        None,
        description="fp8: servers cache keys and values as float8, with a scale for each layer from calibration rows. "
        "Left out: 16 bits",
    )
    gguf: bool = Field(
        False, description="true: the directory holds the model as one GGUF file, too, with Q8_0 weights for llama.cpp"
    )
    calibration_rows: int = Field(
        256, ge=1, le=1_000_000, description="all methods but rtn, kv_cache: training conversations that layers are shown"
    )
    calibration_length: int = Field(
        2_048, ge=16, le=2**24, description="all methods but rtn, kv_cache: tokens after which such a conversation is cut"
    )
    seed: Seed = Field(0, description="all methods but rtn, kv_cache: seed of the choice of conversations")
    distil: DistilRoundingSettings = Field(
        default_factory=DistilRoundingSettings, description="Training of the matrices before they are rounded. Left out: none"
    )
    mesh: MeshSettings = Field(
        default_factory=MeshSettings,
        description="Processes that share calibration rows and the matrices of a block. The same "
        "codes are chosen as by one process. Left out: one process",
    )
    mtp_layer: bool = Field(
        False,
        description="config.json tells servers that the multi-token-prediction layer is not quantized. A "
        "recipe with speculator.architecture mtp sets it; leave it out",
    )

    @model_validator(mode="after")
    def _a_scheme_that_calibrates(self):
        if self.method in FOR_INT4 and not self.calibrated:
            able = ", ".join(name for name, scheme in SCHEMES.items() if scheme.calibrated)
            raise ValueError(
                f"method is {self.method}, but scheme {self.scheme} rounds to nearest: leave method out, or "
                f"choose one of {able}"
            )
        if self.method == "smoothquant" and "w8a8" not in self.schemes:
            raise ValueError(
                f"method is smoothquant, which is for int8 activations, and scheme is {self.scheme}: choose w8a8, "
                "or leave method out"
            )
        return self

    @model_validator(mode="after")
    def _trained_weights_are_rounded_to_nearest(self):
        if self.distil.enabled and self.method not in (None, "rtn"):
            raise ValueError(
                f"distil trains weights for rounding to nearest, and method {self.method} rounds in another way: "
                "leave method out, or set distil.enabled to false"
            )
        if self.distil.enabled and self.scheme == AUTO:
            raise ValueError(
                "distil trains for one scheme of all layers, and scheme is auto: name a scheme, or set distil.enabled to false"
            )
        return self

    @model_validator(mode="after")
    def _a_budget_for_auto(self):
        if (self.scheme == AUTO) != (self.budget is not None):
            raise ValueError(
                "scheme auto needs a budget: give one, such as 0.4"
                if self.scheme == AUTO
                else f"budget is for scheme auto, and scheme is {self.scheme}: leave budget out, or choose auto"
            )
        return self

    @model_validator(mode="after")
    def _a_mesh_that_calibrates(self):
        if self.mesh.alone:
            return self
        for axis in ("cp", "ep", "tp"):
            if getattr(self.mesh, axis) > 1:
                raise ValueError(
                    f"mesh.{axis} is {getattr(self.mesh, axis)}, and processes of quantize share rows only: set "
                    f"mesh.{axis} to 1"
                )
        if self.scheme == AUTO:
            raise ValueError("scheme auto measures the whole model in one process: leave mesh out, or name a scheme")
        if self.distil.enabled:
            raise ValueError("distil trains in one process: leave mesh out, or set distil.enabled to false")
        if not self.calibrates:
            raise ValueError(
                f"mesh shares calibration rows, and scheme {self.scheme} with method {self.resolved().method} "
                "reads none: leave mesh out, or choose a scheme and method that calibrate"
            )
        return self

    @property
    def schemes(self) -> list[str]:
        """The schemes that layers may get."""
        return [name for name in dict.fromkeys(self.candidates) if name != FLOAT] if self.scheme == AUTO else [self.scheme]

    @property
    def calibrated(self) -> bool:
        """Whether codes of a layer may be chosen by what it reads."""
        return any(SCHEMES[name].calibrated for name in self.schemes)

    @property
    def calibrates(self) -> bool:
        """Whether the model is shown rows of a dataset before it is quantized."""
        return self.resolved().method != "rtn" or self.kv_cache is not None or self.scheme == AUTO

    @property
    def reads_rows(self) -> bool:
        """Whether the operation looks at rows of a dataset."""
        return self.calibrates or self.distil.enabled

    def resolved(self):
        """The settings with `method` filled by the scheme."""
        calibrated = self.calibrated and not self.distil.enabled
        return self.model_copy(update={"method": self.method or ("gptq" if calibrated else "rtn")})
