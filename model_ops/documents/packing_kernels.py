"""numba kernels of bin packing: import inside functions only. A `tree` is a set of numbers from 0 to size - 1: tree[size:]
marks the members, inner nodes whether their subtree has any, so the nearest member takes log2(size) steps up and down."""

import numpy as np

from model_ops.machine import compiled


@compiled
def _empty_tree(numbers):
    size = 1
    while size < numbers:
        size *= 2
    return np.zeros(2 * size, dtype=np.bool_)


@compiled
def _add(tree, number):
    node = number + len(tree) // 2
    while node > 0 and not tree[node]:
        tree[node] = True
        node //= 2


@compiled
def _remove(tree, number):
    node = number + len(tree) // 2
    tree[node] = False
    while node > 1 and not tree[node ^ 1]:
        node //= 2
        tree[node] = False


@compiled
def _at_least(tree, number):
    size = len(tree) // 2
    node = number + size
    if tree[node]:
        return number
    while node > 1 and (node % 2 == 1 or not tree[node + 1]):
        node //= 2
    if node <= 1:
        return -1
    node += 1
    while node < size:
        node *= 2
        if not tree[node]:
            node += 1
    return node - size


@compiled
def _at_most(tree, number):
    size = len(tree) // 2
    node = number + size
    if tree[node]:
        return number
    while node > 1 and (node % 2 == 0 or not tree[node - 1]):
        node //= 2
    if node <= 1:
        return -1
    node -= 1
    while node < size:
        node = 2 * node + 1
        if not tree[node]:
            node -= 1
    return node - size


@compiled
def best_fit(lengths, capacity):
    """Best fit: (row of each document, number of rows), each document in the fullest row with space for it."""
    tree = _empty_tree(capacity + 1)
    oldest = np.full(capacity + 1, -1, dtype=np.int64)  # free space -> the rows that have it, as a queue
    newest = np.full(capacity + 1, -1, dtype=np.int64)
    behind = np.full(len(lengths), -1, dtype=np.int64)
    row_of = np.empty(len(lengths), dtype=np.int64)
    rows = 0
    for document in range(len(lengths)):
        length = lengths[document]
        space = _at_least(tree, length)
        if space < 0:
            space, row = capacity, rows
            rows += 1
        else:
            row = oldest[space]
            oldest[space] = behind[row]
            if oldest[space] < 0:
                _remove(tree, space)
        row_of[document] = row
        space -= length
        behind[row] = -1
        if oldest[space] < 0:
            _add(tree, space)
            oldest[space] = row
        else:
            behind[newest[space]] = row
        newest[space] = row
    return row_of, rows


@compiled
def _take(tree, left, length):
    left[length] -= 1
    if left[length] == 0:
        _remove(tree, length)


@compiled
def _give_back(tree, left, length):
    if left[length] == 0:
        _add(tree, length)
    left[length] += 1


@compiled
def fill_rows(lengths, capacity, wanted_rows, sharing, work):
    """Minimum bin slack: (row of each document, number of rows). lengths: positive, descending. Rows are filled one after the
    other. A row begins with the longest remaining document; a depth-first search, longest first, finds the lengths that leave
    the least free space. It ends at a full row, or with `sharing` at a row whose free space is at most its equal share of the
    slack of `wanted_rows` rows. All searches together try `work` lengths, plus 64 per row."""
    tree = _empty_tree(capacity + 1)
    left = np.zeros(capacity + 1, dtype=np.int64)
    following = np.zeros(capacity + 1, dtype=np.int64)  # length -> its first document without a row
    for document in range(len(lengths) - 1, -1, -1):
        length = lengths[document]
        following[length] = document
        _give_back(tree, left, length)
    row_of = np.empty(len(lengths), dtype=np.int64)
    tried = np.empty(len(lengths), dtype=np.int64)
    chosen = np.empty(len(lengths), dtype=np.int64)
    waste = wanted_rows * capacity - lengths.sum()
    rows, documents = 0, len(lengths)
    while documents > 0:
        rows_left = max(1, wanted_rows - rows)
        allowed = max(0, waste // rows_left) if sharing else 0
        tries = max(64, work // rows_left)
        longest = _at_most(tree, capacity)
        _take(tree, left, longest)
        free = capacity - longest
        limit, depth = free, 0
        chosen_depth, chosen_free = 0, free
        while chosen_free > allowed:
            length = _at_most(tree, min(free, limit))
            if length > 0 and tries > 0:
                tries -= 1
                work -= 1
                _take(tree, left, length)
                tried[depth] = length
                depth += 1
                free -= length
                limit = length
                if free < chosen_free:
                    chosen_free, chosen_depth = free, depth
                    chosen[:depth] = tried[:depth]
            elif depth > 0 and tries > 0:
                depth -= 1
                _give_back(tree, left, tried[depth])
                free += tried[depth]
                limit = tried[depth] - 1
            else:
                break
        for place in range(depth):
            _give_back(tree, left, tried[place])
        row_of[following[longest]] = rows
        following[longest] += 1
        for place in range(chosen_depth):
            length = chosen[place]
            _take(tree, left, length)
            row_of[following[length]] = rows
            following[length] += 1
        documents -= 1 + chosen_depth
        waste -= chosen_free
        rows += 1
    return row_of, rows
