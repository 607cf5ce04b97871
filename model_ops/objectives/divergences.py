"""Divergence of a student's next-token distribution q from its teacher's p, and its gradient by the student's logits.

beta is that of GKD (Agarwal et al., arXiv 2306.13649, section 3) and TRL:

    0 < beta < 1:  beta KL(p || m) + (1 - beta) KL(q || m),  m = beta p + (1 - beta) q
    beta = 0:      KL(p || q), forward: the student covers whatever the teacher may say
    beta = 1:      KL(q || p), reverse: the student says only what the teacher would

Gradients (E_q is the mean under q):
    beta = 0:  q - p           beta = 1:  q (log q/p - KL(q || p))           else:  (1 - beta) q (log q/m - E_q log q/m)
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

LEAST_LOG = -100.0
"""Smallest log-probability of a teacher that is counted: e^-100 is below float32's smallest number. A token that the teacher
excludes (log-probability -inf) adds 0 to KL(p || q), and 100 q to KL(q || p)."""


def whole(values: Float[Tensor, "rows vocab"]) -> Float[Tensor, " rows"]:
    """The sum over a vocabulary that is not cut over processes."""
    return values.sum(-1)


def generalised_jsd(
    log_p: Float[Tensor, "rows vocab"],
    log_q: Float[Tensor, "rows vocab"],
    beta: float,
    gradient_wanted: bool = True,
    total: Callable[[Tensor], Tensor] = whole,
) -> tuple[Float[Tensor, " rows"], Float[Tensor, "rows vocab"] | None]:
    """(divergence in nats of each row, its gradient by the logits whose log_softmax is log_q). total: sums over the vocabulary,
    over all processes where it is cut."""
    log_p = log_p.clamp(min=LEAST_LOG)
    q = log_q.exp()
    if beta == 0:
        p = log_p.exp()
        values = total(p * (log_p - log_q))
        return values, q.sub_(p) if gradient_wanted else None
    if beta == 1:
        log_ratio = log_q - log_p
        values = total(q * log_ratio)
        return values, log_ratio.sub_(values[:, None]).mul_(q) if gradient_wanted else None
    log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
    log_ratio = log_q - log_m
    student_part = total(q * log_ratio)
    values = beta * total(log_p.exp() * (log_p - log_m)) + (1 - beta) * student_part
    return values, log_ratio.sub_(student_part[:, None]).mul_(q).mul_(1 - beta) if gradient_wanted else None
