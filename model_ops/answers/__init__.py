"""Answers of models that are kept across a kill.

Start with `answer_log.py`: one append-only file, in which a run that continues finds by key what was paid for.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.answers.answer_log import AnswerLog, Note, Record, packed, unpacked

__getattr__, __dir__, __all__ = door(__name__, __file__)
