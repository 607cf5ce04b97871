"""Decides which rows are fit for training, and records why each other row is not: cleaning.py day by day, selection.py over all
days at once, judgements.py with a judge model."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.curating.cleaning import MACROS, clean, stale_days
    from resources.curating.curation import CurationSettings, Decontamination, FeedbackRules, NearDuplicates
    from resources.curating.decontamination import EVAL_ITEMS, find_contamination, find_items, read_eval_items
    from resources.curating.duplicates.near_duplicates import near_copies
    from resources.curating.judge_endpoint import JudgeEndpoint, JudgeError, JudgeSettings
    from resources.curating.judgements import judge
    from resources.curating.personal_data.presidio import PresidioError, presidio_finder
    from resources.curating.record_counts import RecordCounts
    from resources.curating.row_feedback import (
        FeedbackScale,
        attach_graded_feedback,
        attach_row_feedback,
        feedback_by_name,
        feedback_notes,
        feedback_scales,
        guessed_bound,
    )
    from resources.curating.selection import curate
    from resources.curating.shingles import RaggedLists, ngrams, word_hashes

__getattr__, __dir__, __all__ = door(__name__, __file__)
