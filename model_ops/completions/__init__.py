"""Completions of prompts: by the project's own generator, or by any server with OpenAI's API.

Start with `answerers.py`, one interface over both ways. `endpoint.py` is the one client of servers that answer."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.completions import answerers
    from model_ops.completions.answerers import CompletionTokens
    from model_ops.completions.endpoint import Budget, BudgetError, ChatReply, Endpoint, RateLimiter
    from model_ops.completions.openai_api import MissingKeyError, OpenAiApi, key_in
    from model_ops.completions.sampling_parameters import GREEDY_BELOW, PENALTIES, Sampling, sampling_of, server_defaults
    from model_ops.completions.served import NEUTRAL, ServedMeasure, ServedModel, measure_served
    from model_ops.completions.served_answers import EarlierAnswers, LoggedTokenIds, ServedAnswers
    from model_ops.completions.settings import (
        GENERATED_WITH,
        EndpointSettings,
        GenerateSettings,
        PriceSettings,
        SampleSettings,
        plain_address,
        variable_name,
    )
    from model_ops.completions.turns import Dialogue, choose_conversations, read_conversations

__getattr__, __dir__, __all__ = door(__name__, __file__)
