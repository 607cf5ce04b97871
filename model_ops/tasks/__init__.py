"""Items of an evaluation suite and how an answer is scored: a pure function of item and answer that returns 0 to 1.

Start with `kinds.py`, the table of items and scorers. `unit_tests.py` runs generated code in a sandbox of its own process."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.tasks.call_forms import UNREADABLE_CALL, UnusableAnswer, message_of
    from model_ops.tasks.item import Item, JudgedItem, RecordItem
    from model_ops.tasks.kinds import (
        ITEMS,
        SCORERS,
        AnyItem,
        FunctionCallItem,
        InstructionsItem,
        accepted_calls,
        calls_as_text,
        is_known_instruction,
        language_of,
        read_items,
    )
    from model_ops.tasks.number_value import final_number, logged_number
    from model_ops.tasks.text_match import (
        CompliesItem,
        ContainsItem,
        ExactItem,
        JsonItem,
        NumberItem,
        RefusesItem,
        RegexItem,
        pattern_problem,
        score_json,
    )
    from model_ops.tasks.unit_tests import (
        FunctionFailure,
        UnitTestsItem,
        call_function,
        isolation,
        run_unit_tests,
        running_tests,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)
