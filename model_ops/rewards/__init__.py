"""Reward models: a score for an answer, from the hidden state of its last token.

Training is in `preferences` (the loss) and `operations` (operation `reward_model`); whether a reward model may grade is
measured there and written into its reward.json. Start with `reward_model.py`, which others grade with, then `score_head.py`;
`reward_record.py` is what reward.json holds.
"""

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
