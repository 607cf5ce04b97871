"""What every drafter is, whatever its architecture: how it is trained, decoded, saved and read back.

    model = new_draft_model(settings, runner, target_ids)         # warm-started from the target
    outputs = model.unroll(documents, steps)                      # training: what each draft step's head reads
    rows, weight = model.scored(outputs[0].flatten(0, 1), 0)      # logits of step 0 are rows @ weight.T
    answers = decode(runner, ..., drafter=model.drafter(), num_speculative_tokens=3)
    model.save(directory, 3)
    model = load_draft_model(directory).attach(runner)

A new architecture is a subclass in a file of its own and a line in `draft_model_classes`. At index j of a document every
drafter knows the target's states at j and before and the tokens up to x[j+1]; its step k predicts x[j+2+k]. That is what
a server hands over after a verification: the states of the tokens it accepted, and the token it drew from the last one.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model_ops.decoding.drafters import Drafter
from model_ops.errors import ModelError
from model_ops.speculators.settings import SpeculatorSettings
from model_ops.tensor_files import order_metadata

if TYPE_CHECKING:
    from model_ops.decoding.incremental import IncrementalModel
    from model_ops.speculators.training_time_test import Documents


class DraftModel(nn.Module, ABC):
    """The weights of a drafter and what is done with them. `config` says everything its shapes follow from."""

    config: BaseModel
    trained_for: ClassVar[tuple[str, ...]] = ()
    """Fields of its config that its weights were trained for and no tensor's shape tells."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Its name in recipes and reports: SpeculatorSettings.architecture."""

    @property
    @abstractmethod
    def capture(self) -> tuple[int, ...]:
        """Boundary states of the target it reads; empty where it reads the last hidden state (after the norm) alone."""

    @property
    def longest_chain(self) -> int | None:
        """How many tokens it can draft, where it has a head for each; None where its last step can be repeated."""
        return None

    @property
    def served_greedily(self) -> bool:
        """Whether servers propose its likeliest token at any temperature: what is measured for a release then does too."""
        return False

    @property
    @abstractmethod
    def target_ids(self) -> Int[Tensor, " draft_vocab"]:
        """The target's id of every draft id, ascending."""

    @abstractmethod
    def unroll(self, documents: Documents, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
        """The training forward: for each draft step the states that its head reads, at every entry of the window, or at
        least at documents.kept."""

    @abstractmethod
    def scored(self, hidden: Float[Tensor, "rows hidden"],
               step: int) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "draft_vocab width"]]:
        """What step's logits are the product of, from rows of `unroll(...)[step]`; float32."""

    def attach(self, target: IncrementalModel) -> Self:
        """Itself, with what it shares with its target: nothing, but for an architecture whose files hold neither embedding
        nor head. `new` has done it; after `load_draft_model` it comes before `drafter`, `unroll` and `scored`."""
        return self

    def ready_to_draft(self, dtype: torch.dtype) -> Self:
        """Itself for inference, its weights in `dtype`. Buffers stay: rotary frequencies in bfloat16 are other positions,
        which is why a plain `.to(dtype)` will not do."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)
        return self.eval().requires_grad_(False)

    @abstractmethod
    def drafter(self, greedy: bool = False) -> Drafter:
        """The decode step, for the decoder. greedy: it proposes its likeliest token at any temperature, as servers do that
        do not draft by chance (vLLM's default, and its MEDUSA always); else it draws at the answers' temperature."""

    @abstractmethod
    def save(self, directory: Path, num_speculative_tokens: int, dtype: torch.dtype = torch.bfloat16,
             verifier: str = "target", verifier_architectures: list[str] | None = None) -> None:
        """Write what servers load, weights in `dtype`. verifier: the target, as a server's own config is to name it."""

    @classmethod
    @abstractmethod
    def new(cls, settings: SpeculatorSettings, target: IncrementalModel,
            target_ids: Int[Tensor, " draft_vocab"]) -> DraftModel:
        """A drafter that begins with what the target's weights already know. Raises ModelError where it cannot fit."""

    @staticmethod
    @abstractmethod
    def reads(raw: dict[str, Any]) -> bool:
        """Whether a config.json is that of this architecture."""

    @classmethod
    @abstractmethod
    def from_config(cls, directory: Path, raw: dict[str, Any]) -> DraftModel:
        """The module of a config.json, weights not yet read. Raises ModelError where a field is missing or wrong."""

    def stored(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The module's state from the tensors of a file; another layout gives them its own names."""
        return weights


def draft_model_classes() -> dict[str, type[DraftModel]]:
    """Every architecture there is, by its name in recipes."""
    from model_ops.speculators.dflash import DFlash
    from model_ops.speculators.eagle3 import Eagle3
    from model_ops.speculators.medusa import Medusa
    from model_ops.speculators.mlp_speculator import MlpSpeculator
    from model_ops.speculators.mtp import Mtp
    from model_ops.speculators.p_eagle import PEagle
    from model_ops.speculators.standalone_model import StandaloneModel

    return {"eagle3": Eagle3, "eagle3.1": Eagle3, "p_eagle": PEagle, "dflash": DFlash, "medusa": Medusa,
            "mlp_speculator": MlpSpeculator, "mtp": Mtp, "draft_model": StandaloneModel}


def new_draft_model(settings: SpeculatorSettings, target: IncrementalModel,
                    target_ids: Int[Tensor, " draft_vocab"]) -> DraftModel:
    """A drafter of settings.architecture on the target's device, warm-started; seeded by settings.seed."""
    torch.manual_seed(settings.seed)
    return draft_model_classes()[settings.architecture].new(settings, target, target_ids)


def load_draft_model(directory: Path, dtype: torch.dtype = torch.float32) -> DraftModel:
    """The drafter of a directory, in evaluation mode, whatever its architecture; its weights in `dtype`.

    Raises ModelError where a file is missing, the config is of no known drafter, or a tensor does not fit.
    """
    try:
        raw = json.loads((directory / "config.json").read_text())
        weights = load_file(directory / "model.safetensors")
    except FileNotFoundError as error:
        raise ModelError(f"{error.filename} is missing: {directory} is no drafter") from error
    except SafetensorError as error:
        raise ModelError(f"{directory / 'model.safetensors'} is cut or broken ({error}): copy it again") from error
    except ValueError as error:
        raise ModelError(f"{directory / 'config.json'} is not JSON: copy it again") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{directory / 'config.json'} is not a JSON object: copy it again")
    for known in draft_model_classes().values():
        if known.reads(raw):
            break
    else:
        raise ModelError(f"{directory} is {raw.get('architectures')}, no drafter that is known here")
    try:
        model = known.from_config(directory, raw)
    except (KeyError, TypeError, ValueError) as error:  # of a rotary kind that transformers does not know, for one
        raise ModelError(f"{directory / 'config.json'} holds a value that no layer can be built from ({type(error).__name__}: "
                         f"{error}): copy it again") from error
    weights, expected = model.stored(weights), model.state_dict()
    for name, tensor in expected.items():
        if name not in weights or weights[name].shape != tensor.shape:
            found = "is missing" if name not in weights else f"is {list(weights[name].shape)}"
            raise ModelError(f"{directory}: {name} {found}, the config asks for {list(tensor.shape)}")
    model.load_state_dict({name: weights[name] for name in expected})
    return model.ready_to_draft(dtype)


def in_dtype(weights: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors as a file holds them: floating point in `dtype`, on the CPU, contiguous."""
    return {name: tensor.detach().cpu().to(dtype).contiguous() if tensor.is_floating_point() else tensor.cpu()
            for name, tensor in weights.items()}


def write_directory(directory: Path, weights: dict[str, Tensor], config: dict[str, Any],
                    metadata: dict[str, str] | None = None) -> None:
    """model.safetensors (with `metadata` in its header) and config.json; the weights appear under their name only when
    they are whole."""
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / "model.safetensors.unfinished"
    save_file(weights, unfinished, metadata={"format": "pt", **(metadata or {})})
    order_metadata(unfinished)
    unfinished.chmod(0o644)
    unfinished.replace(directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def name_of(dtype: torch.dtype) -> str:
    """bfloat16, as config.json names it."""
    return str(dtype).removeprefix("torch.")
