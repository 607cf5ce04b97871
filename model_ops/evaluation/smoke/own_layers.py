"""Compares a server's greedy answers with the target's own layers, in a process of its own, which ends with its memory.

    python -m model_ops.evaluation.smoke.own_layers TARGET < answers.json > scores.json

answers.json: [{row_id, messages, tools, request, prompt_ids, ids, text}]. ids are null where the server gives none; then the
text is tokenized. scores.json has `tokens` of the answers; `agreed`, how many of them own layers rank first or at most TIE_NATS
behind; `nll`, the sum of their negative log-probabilities (nats); `prompts` and `same_prompts`, how many prompts came back as
tokens, and as the tokens that this project renders."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from model_ops.decoding import render_prompt
from model_ops.documents import Document
from model_ops.evaluation.measurement import TIE_NATS
from model_ops.evaluation.token_scores import scored_model, token_scores
from model_ops.models import load_tokenizer
from model_ops.rendering import Row


def scores(target: Path, answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The comparison. Raises ModelError for a model that cannot be read."""
    tokenizer = load_tokenizer(target)
    documents, rendered, same = [], 0, 0
    for number, answer in enumerate(answers):
        own = render_prompt(tokenizer, Row(answer["row_id"], answer["messages"], answer["tools"], request=answer["request"]))
        if answer["prompt_ids"]:
            rendered += 1
            same += answer["prompt_ids"] == own
        prompt, ids = (
            answer["prompt_ids"] or own,
            answer["ids"] or tokenizer(answer["text"], add_special_tokens=False)["input_ids"],
        )
        if ids:
            documents.append(
                Document(
                    str(number), np.array([*prompt, *ids], dtype=np.int32), np.arange(len(prompt) + len(ids)) >= len(prompt)
                )
            )
    answer_scores = token_scores(scored_model(target), documents).values() if documents else []
    return {
        "tokens": sum(len(each.gaps) for each in answer_scores),
        "agreed": sum(gap <= TIE_NATS for each in answer_scores for gap in each.gaps),
        "nll": -sum(logprob for each in answer_scores for logprob in each.logprobs),
        "prompts": rendered,
        "same_prompts": same,
    }


if __name__ == "__main__":
    os.nice(10)  # a server answers beside it
    said = scores(Path(sys.argv[1]), json.load(sys.stdin))
    print(json.dumps(said))
