"""The loops of `resources.curating.languages`. Import this module inside functions only: it loads numba."""

import numpy as np

from model_ops.machine import compiled


@compiled
def classify(content, edges, sample, least_letters, moves, rows, outputs, weights, priors):
    """Index of each text's best class (-1: too few letters) and its probability."""
    texts = len(edges) - 1
    logarithms = np.log1p(np.arange(sample + 8).astype(np.float64)).astype(np.float32)
    best = np.full(texts, -1, dtype=np.int32)
    confidence = np.zeros(texts)
    counts = np.zeros(len(weights), dtype=np.int32)
    met = np.zeros(sample + 8, dtype=np.int32)
    prose = np.zeros(sample + 8, dtype=np.uint8)
    scores = np.zeros(len(priors), dtype=np.float32)
    for text in range(texts):
        size, letters = _prose(content, edges[text], edges[text + 1], prose, sample)
        if letters < least_letters:
            continue
        state = 0
        features = 0
        for place in range(size):
            state = np.int64(moves[(rows[state] << 8) + prose[place]])
            feature = outputs[state]
            if feature >= 0:
                if counts[feature] == 0:
                    met[features] = feature
                    features += 1
                counts[feature] += 1
        scores[:] = priors
        for place in range(features):
            feature = met[place]
            weight = logarithms[counts[feature]]
            row = weights[feature]
            for kind in range(len(scores)):
                scores[kind] += weight * row[kind]
            counts[feature] = 0
        if features == 0:
            continue
        top = np.argmax(scores)
        total = 0.0
        for place in range(len(scores)):
            total += np.exp((scores[place] - scores[top]) / np.sqrt(size))
        best[text] = top
        confidence[text] = 1.0 / total
    return best, confidence


@compiled
def _prose(content, start, stop, prose, sample):
    """Copies the prose of a text, at most `sample` bytes; returns its size and its number of letter bytes."""
    size = 0
    letters = 0
    at = start
    space = True
    while at < stop and size < sample:
        byte = content[at]
        if byte == 96:  # `code`, ```code```
            ticks = at
            while ticks < stop and content[ticks] == 96:
                ticks += 1
            width = ticks - at
            close = ticks
            run = 0
            while close < stop and run < width and (width >= 3 or content[close] != 10):
                run = run + 1 if content[close] == 96 else 0
                close += 1
            at = close if run == width or width >= 3 else ticks
            continue
        if byte == 60:  # <tag>, <EMAIL_1>
            close = at + 1
            while close < stop and close - at < 64 and content[close] != 62 and content[close] != 10:
                close += 1
            if close < stop and content[close] == 62:
                at = close + 1
                continue
        if byte == 58 and at + 2 < stop and content[at + 1] == 47 and content[at + 2] == 47:  # ://
            while at < stop and content[at] > 32:
                at += 1
            continue
        letter = 97 <= (byte | 32) <= 122 or byte >= 128
        if letter or byte == 39:
            prose[size] = byte
            size += 1
            letters += letter
            space = False
        elif not space:
            prose[size] = 32
            size += 1
            space = True
        at += 1
    while size > 0 and prose[size - 1] >= 128 and size >= sample:  # no truncated character at the end
        size -= 1
    return size, letters
