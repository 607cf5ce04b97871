"""The compiled loops over groups of rows: each row's parent is a row of its group, the least one is the root (Tarjan 1975).
word_kernels compiles `join` and `root_of` in: a change must touch that file too. Import inside functions only: it loads numba.
"""

from model_ops.machine import compiled


@compiled
def root_of(parents, node):
    """The smallest node of a node's group, with path compression."""
    while parents[node] != node:
        parents[node] = parents[parents[node]]
        node = parents[node]
    return node


@compiled
def join(parents, one, other):
    """Joins the groups of two nodes; their smallest node becomes the root. False if they are one group already."""
    one = root_of(parents, one)
    other = root_of(parents, other)
    if one == other:
        return False
    if one < other:
        parents[other] = one
    else:
        parents[one] = other
    return True


@compiled
def join_pairs(parents, one, other):
    """Joins one[i] and other[i] for every i."""
    for at in range(len(one)):
        join(parents, one[at], other[at])


@compiled
def settle(parents):
    """Makes every node's parent the least node of its group."""
    for node in range(len(parents)):
        parents[node] = root_of(parents, node)
