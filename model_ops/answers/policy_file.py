"""The weights of a policy in training as one file, for engines in other processes.

The file holds the trained weights only, so with adapters it is as small as they are. Each version replaces the file by a rename
once it is complete: an engine reads a whole version or the one before, never a part.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from model_ops.files import renamed_when_complete
from model_ops.jobs import ModelError

PROBE = "probe."


@dataclass(frozen=True)
class PolicyProbe:
    """A text and what the model in training says of it, so that an engine can check the weights that it took."""

    ids: Int[Tensor, " tokens"]
    log_probs: Float[Tensor, " tokens-1"]
    """Of each token but the first one."""


class PolicyFile:
    """One file, written by one process and read by others."""

    def __init__(self, path: Path):
        self.path = path
        self._seen: tuple[int, int] | None = None

    def write(self, model: nn.Module, version: int, probe: PolicyProbe) -> None:
        """version: optimizer steps. Raises ModelError where the disk takes no more."""
        tensors = {name: each.detach().cpu().contiguous() for name, each in model.named_parameters() if each.requires_grad}
        tensors |= {f"{PROBE}{name}": each.cpu().contiguous() for name, each in vars(probe).items()}
        try:
            with renamed_when_complete(self.path) as temporary:
                save_file(tensors, temporary, metadata={"version": str(version)})
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"{self.path}: the weights of step {version} cannot be written for the engines ({error}): free disk space, and "
                "the same command continues"
            ) from error

    @torch.no_grad()
    def read_into(self, model: nn.Module) -> tuple[int, PolicyProbe] | None:
        """Takes the file's weights into the model. Raises ModelError for weights that the model does not have."""
        state = self.path.stat()
        if (seen := (state.st_ino, state.st_mtime_ns)) == self._seen:
            return None
        with safe_open(self.path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            version = int(file.metadata()["version"])
        probe = PolicyProbe(**{name: tensors.pop(f"{PROBE}{name}") for name in ("ids", "log_probs")})
        own = {name: each for name, each in model.named_parameters() if each.requires_grad}
        if own.keys() != tensors.keys():
            raise ModelError(f"{self.path} has other weights than the model that an engine loaded. This is a bug: report it")
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
        self._seen = seen
        return version, probe
