"""Answers on the terminal: `millrace sql`, `why`, `lineage`, `show`, `models`, `chat`, and what `forget` would erase. Questions
run with limits on time and memory (bounded.py), which `millrace.open(lake).sql` shares. Rows go to the terminal, a pipe or a
file (lineage_text.py). The queries are in resources/catalog, a chat's models and its page in resources/serving/chat."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.asking.bounded import Bounds, bounded_question
    from pipelines.asking.conversation import TerminalChat
    from pipelines.asking.forget_text import plan_as_json, print_hints, print_plan
    from pipelines.asking.lineage_text import named_parameters, print_answer, print_origin, print_tree, result_printer
    from pipelines.asking.model_table import print_models
    from pipelines.asking.preference_rows import picture_of, preferences_of, print_picture, print_preferences
    from pipelines.asking.rescoring import print_rescored, rescore_answers
    from pipelines.asking.why_text import print_history

__getattr__, __dir__, __all__ = door(__name__, __file__)
