"""Limits of pace and cost for the threads that ask one server.

A request of t tokens moves the time of the next one by the larger of 60 / requests_per_minute and 60 t / tokens_per_minute, so
no minute holds more than the limits and the one request that began before it. Before a request its largest cost is reserved: a
token is at least one byte, so a prompt has at most as many tokens as its request has bytes. Reservations of requests on their
way count as spent, so no order of replies passes the limit.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from model_ops.answering.settings import PriceSettings

MILLION = 1_000_000


class RateLimiter:
    """Thread-safe. clock, sleep: seconds; tests give their own."""

    def __init__(
        self,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._per_request_s = 60 / requests_per_minute if requests_per_minute else 0.0
        self._per_token_s = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self._clock, self._sleep, self._lock = clock, sleep, threading.Lock()
        self._next_request_s = self._next_tokens_s = self._held_until_s = float("-inf")

    def wait(self, tokens: int) -> None:
        """Blocks until a request of `tokens` may be sent, and counts it."""
        while True:
            with self._lock:
                now_s = self._clock()
                free_s = max(self._next_request_s, self._next_tokens_s, self._held_until_s)
                if free_s <= now_s:
                    self._next_request_s = now_s + self._per_request_s
                    self._next_tokens_s = now_s + tokens * self._per_token_s
                    return
            self._sleep(min(free_s - now_s, 1.0))  # a correction may bring the time forward

    def correct(self, tokens: int) -> None:
        """Counts more tokens than were announced, or fewer where negative."""
        with self._lock:
            self._next_tokens_s += tokens * self._per_token_s

    def hold(self, seconds: float) -> None:
        """Lets no request go before `seconds` from now."""
        with self._lock:
            self._held_until_s = max(self._held_until_s, self._clock() + seconds)


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

    def __init__(self, price: PriceSettings | None = None, max_cost: float | None = None, spent: float = 0.0):
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
