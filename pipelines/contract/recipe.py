"""The recipe: the contract with its users, one for each workload. Relative paths start at its own folder, or at `base`.

recipe = load_recipe(Path("shop.yaml"))                             # a YAML file
recipe = read_recipe({"workload": "shop", ...}, base=Path.cwd())     # or its text, or its values"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, PrivateAttr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from model_ops.evaluation import EvaluateSettings
from model_ops.files import Home
from model_ops.graders import GraderSettings
from model_ops.operations import BASE, PREFERRED, REINFORCED, TRAINED
from model_ops.speculators import ARCHITECTURES
from pipelines.contract.check import problems_in
from pipelines.contract.fields import RecipeFields
from pipelines.contract.rules import broken_rules
from pipelines.contract.text import RecipeProblemsError, RecipeText, parse_text, parse_values, read_text
from resources.sources import absolute_uri

__all__ = ["Recipe", "load_recipe", "read_recipe"]

UNNAMED = "the recipe"
"""Name, in messages, of a recipe that is not a file."""


def with_absolute_paths(given: Any, read: Any) -> Any:
    """Values of a recipe as they were given, with the texts that reading made of them."""
    if isinstance(read, GraderSettings) and isinstance(given, str):  # the short form of one grader
        (part,) = read.parts.values()
        return part.by
    if isinstance(given, dict):
        held = dict(read) if isinstance(read, BaseModel) else read if isinstance(read, dict) else {}
        return {key: with_absolute_paths(value, held.get(key)) for key, value in given.items()}
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        return [with_absolute_paths(*pair) for pair in zip(given, read, strict=True)]
    return read if isinstance(given, str) and isinstance(read, str) else given


class Recipe(RecipeFields):
    """One workload's recipe. recipes/demo.yaml runs anywhere."""

    _content: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _agrees_with_itself(self):
        trained = [word for word in (REINFORCED, PREFERRED) if word not in self.policy.off]
        if self.merge is not None and self.merge.models is None and trained:
            self.merge.models = [*trained, TRAINED if self.sft.enabled else BASE][:2]
        if problems := list(broken_rules(self)):
            raise PydanticCustomError("broken_rules", "keys of the recipe contradict each other", {"problems": problems})
        self.evaluation.temperatures = sorted({*self.evaluation.temperatures, self.speculator.answers.measured_at})
        if self.speculator.enabled and ARCHITECTURES[self.speculator.architecture].unquantized_layer:
            self.quantize.mtp_layer = True
        return self

    @property
    def evaluate_settings(self) -> EvaluateSettings:
        """Settings of the evaluation job: `evaluation`, and what other sections say of it."""
        grader = self.rft.grader if self.rft is not None and self.rft.enabled else None
        return EvaluateSettings(
            **self.evaluation.model_dump(),
            num_speculative_tokens=self.speculator.num_speculative_tokens,
            rft_graders=sorted({part.by for part in grader.parts.values()}) if grader else [],
            compared=self.policy.compared_losses,
            parents={rows: self.policy.parent_role(each.name) for rows, each in self.policy.measured_rows.items()},
        )

    def as_text(self) -> str:
        """The recipe as JSON that can be read from any folder: the given keys, with absolute paths. Reading it gives the same
        recipe."""
        return json.dumps(with_absolute_paths(self._content, self), indent=2, ensure_ascii=False) + "\n"


def load_recipe(path: Path) -> Recipe:
    """The recipe in a YAML file, with absolute paths. Raises RecipeError with all problems found."""
    path = Path(path)
    return _validated(read_text(path), path.resolve().parent, path)


def read_recipe(recipe: str | Mapping[str, Any], base: Path, origin: str = UNNAMED) -> Recipe:
    """The recipe in a text (YAML or JSON) or in values, read as `load_recipe` reads a file. base: the folder that relative
    paths start from. origin: what messages call the recipe. Raises RecipeError."""
    text = parse_text(recipe, origin) if isinstance(recipe, str) else parse_values(recipe, origin)
    return _validated(text, Path(base).expanduser().absolute(), origin)


def _validated(text: RecipeText, home: Path, origin: Path | str) -> Recipe:
    recipe, error = None, None
    try:
        recipe = Recipe.model_validate(text.content, context=Home(home, absolute_uri))
    except ValidationError as raised:
        error = raised
    problems = [*text.problems, *problems_in(Recipe, text, error)]
    if problems:
        raise RecipeProblemsError(origin, problems) from error
    assert recipe is not None
    recipe._content = text.content
    return recipe
