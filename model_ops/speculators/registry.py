"""Finds a drafter architecture by name or config.json, and reads settings of any of them. Importing this module imports no
torch."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import BeforeValidator, Discriminator, Tag, TypeAdapter

from model_ops.speculators import architectures
from model_ops.speculators.architecture import Architecture, Config
from model_ops.speculators.settings import SpeculatorSettings

ARCHITECTURES: dict[str, Architecture] = {
    each.name: each for each in vars(architectures).values() if isinstance(each, Architecture)
}
"""Name in recipes -> architecture, in the order of messages and docs."""

DEFAULT = "eagle3"
"""The architecture where a recipe names none."""

REMOVED = ("medusa", "p_eagle")
"""Architectures of earlier versions."""


def architecture_of(config: Config) -> Architecture | None:
    """The architecture of a saved drafter, from its config.json; None where no architecture recognises it."""
    return next((each for each in ARCHITECTURES.values() if each.recognises(config)), None)


@cache
def _owners() -> dict[str, list[str]]:
    """Key that not every architecture takes -> the architectures that take it."""
    taken: dict[str, list[str]] = {}
    for name, architecture in ARCHITECTURES.items():
        for key in architecture.settings.model_fields:
            taken.setdefault(key, []).append(name)
    return {key: names for key, names in taken.items() if len(names) < len(ARCHITECTURES)}


def _named(values: Any) -> Any:
    """The architecture that settings are of, given as a mapping or as settings."""
    if isinstance(values, SpeculatorSettings):
        return values.architecture
    return values.get("architecture", DEFAULT) if isinstance(values, dict) else DEFAULT


def _without_keys_of_others(values: Any) -> Any:
    """Refuses a removed architecture, and a key of another one with the names of those that take it; null counts as left
    out."""
    if _named(values) in REMOVED:
        raise ValueError(f"architecture {_named(values)} was removed: take {DEFAULT}")
    architecture = ARCHITECTURES.get(_named(values)) if isinstance(_named(values), str) else None
    if not isinstance(values, dict) or architecture is None:
        return values
    foreign = {key: names for key, names in _owners().items() if key in values and architecture.name not in names}
    for key, names in foreign.items():
        if values[key] is not None:
            have_it = f"only {names[0]} has it" if len(names) == 1 else f"{', '.join(names)} have it"
            raise ValueError(f"{key} is set, but architecture is {architecture.name} and {have_it}: leave it out")
    return {key: value for key, value in values.items() if key not in foreign}


if TYPE_CHECKING:
    AnySpeculatorSettings = SpeculatorSettings
else:
    AnySpeculatorSettings = Annotated[
        Union[tuple(Annotated[each.settings, Tag(name)] for name, each in ARCHITECTURES.items())],  # noqa: UP007 (from a list)
        Discriminator(_named),
        BeforeValidator(_without_keys_of_others),
    ]
"""The recipe's `speculator` section: one settings model for each architecture, told apart by the key `architecture`."""

_ADAPTER = TypeAdapter(AnySpeculatorSettings)


def speculator_settings(**values: Any) -> SpeculatorSettings:
    """Settings of the named architecture, or of eagle3. Raises pydantic's ValidationError."""
    return _ADAPTER.validate_python(values)
