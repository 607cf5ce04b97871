"""Counts the cost of answers and stops before a limit is passed.

    budget = Budget(price, max_cost=5.0, spent=1.20)
    with budget.reserved(prompt_bytes=900, max_tokens=2_048) as bill:      # BudgetError if it could pass the limit
        bill.usage(prompt_tokens=310, answer_tokens=650)                   # what it was

Before a request its largest cost is reserved: a token is at least one byte, so a prompt has at most as many tokens as its
request has bytes. Reservations of requests on their way count as spent, so no order of replies passes the limit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from resources.teaching.settings import PriceSettings

MILLION = 1_000_000


class BudgetError(Exception):
    """The next request could pass the limit, and no request is on its way that could leave more of it."""


class Bill:
    """The cost of one request."""

    def __init__(self, price: PriceSettings | None):
        self._price = price
        self.cost = 0.0

    def usage(self, prompt_tokens: int, answer_tokens: int) -> None:
        """Adds the tokens of a reply; a repeated request may have several."""
        if self._price is not None:
            self.cost += (prompt_tokens * self._price.input + answer_tokens * self._price.output) / MILLION


class Budget:
    """Thread-safe. spent: so far, in the prices' currency."""

    def __init__(self, price: PriceSettings | None, max_cost: float | None, spent: float = 0.0):
        self._price, self._most, self.spent = price, max_cost, spent
        self._reserved, self._free = 0.0, threading.Condition()

    @contextmanager
    def reserved(self, prompt_bytes: int, max_tokens: int) -> Iterator[Bill]:
        """Waits until the largest cost of a request fits. Raises BudgetError if it cannot."""
        largest = Bill(self._price)
        largest.usage(prompt_bytes, max_tokens)
        with self._free:
            while self._most is not None and self.spent + self._reserved + largest.cost > self._most:
                if not self._reserved:
                    raise BudgetError
                self._free.wait()
            self._reserved += largest.cost
        bill = Bill(self._price)
        try:
            yield bill
        finally:
            with self._free:
                self._reserved = max(0.0, self._reserved - largest.cost)
                self.spent += bill.cost
                self._free.notify_all()
