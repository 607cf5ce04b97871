"""Graders say how good a model's answers to a prompt are: a function of a user's file, a check of model_ops/tasks, a judge.

An answer that a grader cannot grade is never 0: it is counted, named by its row, and left out. Start with `grader.py`."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.graders import function_child
    from model_ops.graders.functions import Child, heard
    from model_ops.graders.grade import AskedGroup, Failures, Grade, GradedAnswer, check_all
    from model_ops.graders.grader import Grader
    from model_ops.graders.judge import PairwiseJudge, last_object
    from model_ops.graders.settings import AnswerJudgeSettings, GraderPart, GraderSettings

__getattr__, __dir__, __all__ = door(__name__, __file__)
