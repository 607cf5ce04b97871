"""A plugin of pytest: shapes and dtypes in the signatures of model_ops hold in every call of a test, room by room.

jaxtyping names them (`Float[Tensor, "rows vocab"]`) and beartype compares: each function and dataclass of model_ops with such an
annotation is replaced when its module is imported, before anyone can take the plain one. Other annotations are mypy's. Forks of
the tests are checked, too; processes that start anew are not.
"""

import inspect
import re
import sys
from collections.abc import Callable
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any, get_args

from beartype import BeartypeConf
from beartype.door import die_if_unbearable
from jaxtyping import AbstractArray, jaxtyped

ROOMS = (
    "adapters",
    "calibration",
    "decoding",
    "documents",
    "losses",
    "models",
    "objectives",
    "preferences",
    "pruning",
    "quantization",
    "reinforcement",
    "rewards",
    "rollouts",
    "speculators",
    "tensors",
    "training",
)
"""Rooms of model_ops that are checked; another one is added once what its tests find is mended."""

NUMBERS = BeartypeConf(is_pep484_tower=True)
"""An int is a float."""

COMPUTED = re.compile(r"\w[-+*/]")
"""A size such as `drafts+1`, which jaxtyping computes from sizes that it has seen."""


def names_array(annotation: Any) -> bool:
    """Whether it is an array of jaxtyping, or a container or union of some."""
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        return True
    return any(names_array(part) for part in get_args(annotation))


def check_arrays(function: FunctionType) -> Callable:
    """What jaxtyping asks to compare a call: beartype, for arrays alone; sizes that are computed from others come last."""
    signature = inspect.signature(function)
    arrays = [(name, kind) for name, kind in function.__annotations__.items() if names_array(kind)]
    arrays.sort(key=lambda array: COMPUTED.search(str(array[1])) is not None)
    several = {name for name, parameter in signature.parameters.items() if parameter.kind is parameter.VAR_POSITIONAL}

    @wraps(function)
    def compare(*args: Any, **kwargs: Any) -> Any:
        given = {**signature.bind(*args, **kwargs).arguments, "return": function(*args, **kwargs)}
        for name, kind in arrays:
            for value in given[name] if name in several else [given[name]] if name in given else []:
                die_if_unbearable(value, kind, conf=NUMBERS)
        return given["return"]

    return compare


def _annotated(function: FunctionType) -> bool:
    kinds = (str(kind) for kind in function.__annotations__.values())
    return any("[Tensor" in kind or "[np.ndarray" in kind or names_array(function.__globals__.get(kind)) for kind in kinds)


def check_shapes(module: ModuleType) -> None:
    """Replaces the annotated functions, methods and dataclasses' `__init__` that the module defines."""
    classes = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    for holder in (module, *classes):
        for name, value in list(vars(holder).items()):
            plain = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if isinstance(plain, FunctionType) and plain.__module__ == module.__name__ and _annotated(plain):
                setattr(holder, name, jaxtyped(value, typechecker=check_arrays))


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        check_shapes(module)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        checked = name.startswith(tuple(f"model_ops.{room}." for room in ROOMS))
        spec = PathFinder.find_spec(name, path) if checked else None
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


sys.meta_path.insert(0, _Finder())
