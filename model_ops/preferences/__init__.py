"""Preference training: rows of pairs and of single answers become documents, batches and losses.

Start with `preference_documents.py` (a pair is one document) and `preference.py`, the losses. `sampled_pairs.py` makes pairs of
the model's own answers while it trains; `reward_loss.py` trains a model that scores answers on the same pairs."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.preferences.held_out_preferences import HeldOutPreferences, MismatchedPlan
    from model_ops.preferences.preference import PreferenceLoss
    from model_ops.preferences.preference_batches import PreferencePlan, ReferenceReader
    from model_ops.preferences.preference_documents import PAIR, Preferences, answer_masks, read_preferences
    from model_ops.preferences.reward_loss import PairPlan, PairStreams, RewardBatch, RewardLoss, validation_of_pairs
    from model_ops.preferences.sampled_pair_settings import SampledPairSettings
    from model_ops.preferences.sampled_pairs import ReferenceLogProbs, SampledPairPlan
    from model_ops.preferences.sampled_rounds import SampledRounds

__getattr__, __dir__, __all__ = door(__name__, __file__)
