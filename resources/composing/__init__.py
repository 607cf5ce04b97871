"""Builds datasets from curated rows: supervised fine-tuning, preference pairs, prompts for reinforcement, calibration rows,
evaluation suites, seeds, answers as they were served, and answers of a teacher (teachers/). Which rows are fit for training is
decided in curating/. Start with datasets.py; dataset_settings.py holds the recipe's keys.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.composing import dropped_seeds
    from resources.composing.calibration import build_calibration
    from resources.composing.dataset_schemas import DATASET_SCHEMAS
    from resources.composing.dataset_settings import (
        CalibrationSettings,
        DatasetError,
        DatasetSettings,
        NamedDataset,
        PreferenceSettings,
        RlPromptSettings,
        SeedSettings,
    )
    from resources.composing.datasets import build_sft_dataset, lent_by, sessions_in_two_splits
    from resources.composing.eval_suite import EvalSettings, EvalSuiteError, build_eval_suite
    from resources.composing.held_out import held_out_in_training
    from resources.composing.preferences import TaughtAnswers, build_preferences
    from resources.composing.rl_prompts import build_rl_prompts
    from resources.composing.seeds import SeedError, import_seeds
    from resources.composing.served_answers import build_served_answers
    from resources.composing.teachers.answer_store import AnswerStore
    from resources.composing.teachers.model_answers import ModelTeacher
    from resources.composing.teachers.requests import prompt_of
    from resources.composing.teachers.settings import TeacherSettings
    from resources.composing.teachers.teacher_answers import build_teacher_answers
    from resources.composing.token_counts import local_tokenizers, vocabularies

__getattr__, __dir__, __all__ = door(__name__, __file__)
