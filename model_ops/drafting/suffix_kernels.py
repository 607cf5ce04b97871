"""numba kernels of the suffix drafter (`model_ops.drafting.suffix`). Import inside functions only, since it loads numba."""

import numpy as np

from model_ops.machine import compiled

TOKEN, LEFT, RIGHT, PREVIOUS, SEQUENCE = range(5)
"""Rows of `positions`; see `suffix.SuffixText`."""


@compiled
def append(positions, latest, size, sequence, end, tokens):
    """Writes the next tokens of a sequence at positions size, size + 1, ...; returns the new size."""
    for token in tokens:
        positions[TOKEN, size] = token
        positions[LEFT, size] = end
        positions[RIGHT, size] = -1
        positions[PREVIOUS, size] = latest[token]
        positions[SEQUENCE, size] = sequence
        if end >= 0:
            positions[RIGHT, end] = size
        latest[token] = size
        end = size
        size += 1
    return size


@compiled
def propose(positions, latest, oldest, context, count, depth, factor, least):
    """(score, tokens) of the best draft over all suffixes of the context, which is the end of a sequence. Probabilities are
    float32 as in ArcticInference, so that the same drafts tie."""
    longest = min(len(context), depth) - 1
    # every occurrence of the last token, newest first, with the number of tokens up to it that match the context's end
    places, matched = [0][:0], [0][:0]
    position = latest[context[-1]]
    while position >= 0:
        if positions[SEQUENCE, position] >= oldest:
            length, here = 1, positions[LEFT, position]
            while length < longest and here >= 0 and positions[TOKEN, here] == context[-1 - length]:
                length += 1
                here = positions[LEFT, here]
            places.append(position)
            matched.append(length)
        position = positions[PREVIOUS, position]
    seen = np.zeros(len(latest), dtype=np.int32)
    best = np.empty(0, dtype=np.int32)
    best_score = np.float32(0)
    alive = np.empty(len(places), dtype=np.int32)
    for length in range(1, longest + 1):
        total = 0
        for index in range(len(places) - 1, -1, -1):  # oldest first
            if matched[index] >= length:
                alive[total] = places[index]
                total += 1
        if total == 0:
            break
        limit = min(count, int(length * factor + 1e-6), depth - length)
        draft = np.empty(max(limit, 0), dtype=np.int32)
        probability, score, drafted = np.float32(1), np.float32(0), 0
        while drafted < limit:
            token, times = _most_frequent(positions, alive, total, seen)
            if times == 0:
                break
            probability *= np.float32(times) / np.float32(total)
            if probability < least:
                break
            draft[drafted] = token
            score += probability
            drafted += 1
            following = 0
            for index in range(total):
                right = positions[RIGHT, alive[index]]
                if right >= 0 and positions[TOKEN, right] == token:
                    alive[following] = right
                    following += 1
            total = following
        if score >= best_score:
            best, best_score = draft[:drafted], score
    return best_score, best


@compiled
def _most_frequent(positions, alive, total, seen):
    """(token, count) of the most frequent token after the positions; ties go to the token that first reached the count.
    `seen` is all 0 before and after."""
    token, times = -1, 0
    for index in range(total):
        right = positions[RIGHT, alive[index]]
        if right >= 0:
            following = positions[TOKEN, right]
            seen[following] += 1
            if seen[following] > times:
                token, times = following, seen[following]
    for index in range(total):
        right = positions[RIGHT, alive[index]]
        if right >= 0:
            seen[positions[TOKEN, right]] = 0
    return token, times
