"""Builds datasets from curated rows: for fine-tuning, preferences, reinforcement, calibration, evaluation and distillation.
Which rows are fit for training is decided in curating/. Start with datasets.py; dataset_settings.py holds the recipe's keys."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
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
    from resources.composing.datasets import build_sft_dataset, lent_by, local_tokenizers, sessions_in_two_splits, vocabularies
    from resources.composing.eval_suite import EvalSettings, EvalSuiteError, build_eval_suite
    from resources.composing.held_out import held_out_in_training
    from resources.composing.preferences import TaughtAnswers, build_preferences
    from resources.composing.rl_prompts import build_rl_prompts
    from resources.composing.seeds import SeedError, SeedTombstones, drop_contaminated_seeds, drop_erased_seeds, import_seeds
    from resources.composing.served_answers import build_served_answers
    from resources.composing.teachers.answer_store import AnswerStore, prompt_of
    from resources.composing.teachers.model_answers import ModelTeacher
    from resources.composing.teachers.settings import TeacherSettings
    from resources.composing.teachers.teacher_answers import build_teacher_answers

__getattr__, __dir__, __all__ = door(__name__, __file__)
