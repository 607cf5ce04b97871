"""The jobs `retrain` and `withdraw_request`: a person asks for a retraining in the Dagster UI, with a form, or takes that back.

They do what `millrace retrain` does: the request is kept, and the sensor `decide` decides it at its next tick. The name in the
form is what the person typed: whoever can open the UI can type any name.
"""

from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
from pydantic import Field

from pipelines.contract.recipe import Recipe
from pipelines.graph.form_jobs import NAME, form_job, in_one_sentence
from resources.deciding.decide import preview
from resources.deciding.decisions_table import Decisions
from resources.deciding.request_text import asked_sentence, preview_sentences, withdrawn_sentence
from resources.deciding.requests import DESPITE, WANTED, Request, RequestError, Requests
from resources.lake import Lake, LakeError
from resources.releasing.actor import Actor, ActorError
from stores.s3 import S3Error

REFUSALS = (RequestError, ActorError, LakeError, S3Error, OSError)


class RetrainForm(dg.Config):
    """Asks for a retraining; the sensor `decide` starts it."""

    name: str = NAME
    because: str = Field(default="", description="Why a retraining is wanted, in one line that is recorded; needed")
    action: str = Field(default="full", description=f"What is made again: {', '.join(WANTED)}")
    despite: list[str] = Field(default=[], description=f"What does not apply to this request: any of {', '.join(DESPITE)}")
    dry_run: bool = Field(default=False, description="true: only says what would be done; nothing is kept or started")


class WithdrawForm(dg.Config):
    """Takes back a request for a retraining that is not decided yet."""

    request: str = Field(default="", description="Id of the request: the job `retrain` says it, `millrace decisions` lists it; "
                         "needed")
    name: str = NAME
    because: str = Field(default="", description="Why it is not wanted any more, in one line that is recorded")


def request_jobs(recipe: Recipe, place: Path) -> list[dg.JobDefinition]:
    """The jobs of one recipe."""

    @dg.op(name="ask_for_retraining", description="Keeps the request with name and reason; the sensor `decide` decides it.")
    def asking(context: dg.OpExecutionContext, config: RetrainForm) -> None:
        with in_one_sentence(REFUSALS):
            lake, now = Lake.open(place, create=False), datetime.now(UTC)
            by = _signed(config.name, config.because, context)
            wanted, settings = Request.of(recipe.workload, by, config.action, config.despite), recipe.automation.decide
            if config.dry_run:
                decisions = Decisions(lake, recipe.workload).seen()
                said = preview_sentences(*preview(wanted, lake, recipe.facts, settings, decisions, now))
            else:
                said = asked_sentence(*Requests(lake, recipe.workload).ask(wanted, now), settings)
            _told(context, said)

    @dg.op(name="take_back_request", description="Records that the request is not wanted any more.")
    def withdrawing(context: dg.OpExecutionContext, config: WithdrawForm) -> None:
        with in_one_sentence(REFUSALS):
            lake, by = Lake.open(place, create=False), _signed(config.name, config.because, context)
            withdrawn = Requests(lake, recipe.workload).withdraw(config.request.strip(), by, datetime.now(UTC))
            _told(context, withdrawn_sentence(withdrawn))

    return [
        form_job("retrain", asking, RetrainForm, "Asks for a retraining, as `millrace retrain` does: the form asks for your "
                 "name, the reason, and what is to be made again. The sensor `decide` starts it at its next tick, within "
                 "the budget, the quiet hours and the cool-down, unless the request says otherwise."),
        form_job("withdraw_request", withdrawing, WithdrawForm, "Takes back a request for a retraining that is not decided "
                 "yet, as `millrace retrain --withdraw` does."),
    ]


def _signed(name: str, because: str, context: dg.OpExecutionContext) -> Actor:
    return Actor.of_form(name, f"Dagster UI, run {context.run_id[:8]}", because)


def _told(context: dg.OpExecutionContext, said: str) -> None:
    context.log.info(said)
    context.add_output_metadata({"request": said})
