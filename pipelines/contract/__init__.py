"""The recipe, the contract with its users: sections and keys (fields.py), reading YAML with lines (text.py), rules between keys
(rules.py), problems as one sentence each. reference_page.py makes the JSON Schema and the list of keys. Settings of a stage
stand beside its code and are only gathered here. Start with recipe.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.contract.base_choice import TINY, Base, BaseModelError, look_at_base
    from pipelines.contract.recipe import Recipe, load_recipe, read_recipe
    from pipelines.contract.reference_page import as_text, json_schema, reference
    from pipelines.contract.text import RecipeProblemsError

__getattr__, __dir__, __all__ = door(__name__, __file__)
