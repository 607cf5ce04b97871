"""`millrace init`: looks at logs through resources/inspecting, asks a few questions, and writes a recipe in which each value
has its reason in a comment (recipe_text.py). It runs nothing. Start with recipe_file.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.init.recipe_file import RecipeWishes, ask, print_new_recipe, write_recipe

__getattr__, __dir__, __all__ = door(__name__, __file__)
