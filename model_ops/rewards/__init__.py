"""Reward models: a score for an answer, from the hidden state of its last token. Training is in `preferences` and `operations`.

Start with `reward_model.py`, which others grade with; `reward_record.py` is what reward.json holds."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.rewards.reward_model import (
        RewardModel,
        Scores,
        answer_scores,
        scorers_tokenizer,
        segment_ends,
        with_score_head,
    )
    from model_ops.rewards.reward_record import RECORD, RewardRecord

__getattr__, __dir__, __all__ = door(__name__, __file__)
