"""Jobs of one step with a form, for what a person decides in the Dagster UI.

    form_job("approve", approving, ApproveForm, "Approves a release ...")
    with in_one_sentence((ReleaseError,)): ...         # a refusal fails the run with its sentence, without a traceback
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from pydantic import Field

from resources.releasing.actor import Actor

NAME = Field(default="", description="Your name, which is recorded with the decision; needed")


def form_job(name: str, op: dg.OpDefinition, form: type[dg.Config], description: str, **filled: str) -> dg.JobDefinition:
    """A job of one step whose form shows every field. filled: values that the form offers."""
    shown = {"ops": {op.name: {"config": form(**filled).model_dump()}}}

    @dg.job(name=name, description=description, config=shown)
    def job():
        op()

    return job


@contextmanager
def in_one_sentence(refusals: tuple[type[Exception], ...]) -> Iterator[None]:
    """A refusal in the block is a failure with one sentence, without a traceback."""
    try:
        yield
    except refusals as error:
        raise dg.Failure(description=str(error), allow_retries=False) from None


def actor_of(name: str, reason: str, context: dg.OpExecutionContext) -> Actor:
    """The person who filled in the form."""
    return Actor.of_form(name, f"Dagster UI, run {context.run_id[:8]}", reason)
