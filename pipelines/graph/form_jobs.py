"""Jobs of one step with a form, for decisions in the Dagster UI. Each calls what its command calls, so policies, re-checks,
keys and log entries are the same. Whoever can open the UI can type any name; where keys are trusted, the key of the process
that runs the job signs the entry."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
from pydantic import Field

from assets.release import endpoint_moved
from pipelines.contract import Recipe
from resources.catalog import publish
from resources.deciding import ACTIONS, DESPITE, Decisions, RequestError, Requests, RetrainingRequest, preview
from resources.endpoints import (
    Actor,
    ActorError,
    Aliases,
    Endpoint,
    EndpointError,
    EndpointLogError,
    approve_release,
    check_digest,
    promote_to,
    roll_back,
    rollback_target,
    withdraw,
)
from resources.lake import LakeError, LakeLayout
from resources.manifests import ManifestError
from resources.releases import SHORTEST_SURE, NamedRelease, ReleaseError, UnsureNameError, find_release, read_release
from resources.signing import KeyProblemError
from stores.s3 import S3Error

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


REFUSALS = (
    ReleaseError,
    EndpointError,
    EndpointLogError,
    ManifestError,
    LakeError,
    ActorError,
    UnsureNameError,
    KeyProblemError,
)
CHAMPION = "champion"
REASON = Field(default="", description="One line that is recorded with the decision")
RELEASE = Field(default="", description=f"Version of the release, at least {SHORTEST_SURE} characters of it; needed")
DIGEST = Field(
    default="",
    description="Beginning of the digest that you read on the approval page or in the release's "
    "metadata: a release with another digest is refused. Empty: not compared",
)


class ApproveForm(dg.Config):
    """Approves a release; with another alias than champion, lets that alias name an approved release."""

    release: str = RELEASE
    name: str = NAME
    reason: str = REASON
    digest: str = DIGEST
    alias: str = Field(
        default=CHAMPION,
        description="champion: approve the release, and serve it once enough people have. A "
        "further alias, such as canary: let it name a release that is approved already",
    )


class RejectForm(dg.Config):
    """Refuses a candidate, or withdraws an approval."""

    release: str = RELEASE
    name: str = NAME
    reason: str = REASON
    digest: str = DIGEST


class RollbackForm(dg.Config):
    """Returns to an earlier champion, and withdraws the release that it replaces."""

    name: str = NAME
    reason: str = REASON
    to: str = Field(
        default="", description="Version of the release to return to. Empty: the last champion that was not withdrawn"
    )
    champion: str = Field(
        default="",
        description="Version of the champion that you want replaced: if another release is "
        "champion by now, nothing is rolled back. Empty: not compared",
    )
    though_tainted: bool = Field(default=False, description="Yes, also to weights that learnt rows which were erased since")


def decision_jobs(recipe: Recipe, place: Path) -> list[dg.JobDefinition]:
    """The jobs of a recipe that releases; none without."""
    if not recipe.release.enabled:
        return []

    waiting = _candidate(place, recipe.workload)

    @dg.op(name="approve_release", description="Checks gates, digests and policy again, records who and why, moves the alias.")
    def approving(context: dg.OpExecutionContext, config: ApproveForm) -> None:
        with in_one_sentence(REFUSALS):
            lake, by = LakeLayout.open(place, create=False), actor_of(config.name, config.reason, context)
            directory, seen = _read(lake, recipe.workload, config.release, config.digest)
            if config.alias.strip() not in ("", CHAMPION):
                aliases = promote_to(lake, directory, config.alias.strip(), by, seen)
                _conclude(context, lake, aliases, f"{config.alias.strip()} names release {directory.name}")
                return
            done = approve_release(lake, directory, by, seen)
            if done.aliases is None:
                people = ", ".join(done.approvals.people) or "nobody"
                waits = (
                    f"release {directory.name} is approved by {people}; {done.approvals.needed} must approve it; no alias moved"
                )
                _conclude(context, lake, None, "; ".join([waits, *done.approvals.refused]))
                return
            moved = f"champion moved from {seen.champion or 'none'} to {done.aliases.champion}"
            served = f"release {directory.name} is the champion already"
            _conclude(context, lake, done.aliases, served if done.aliases.champion == seen.champion else moved)

    @dg.op(name="reject_release", description="Records the refusal of a candidate, or the withdrawal of an approval.")
    def rejecting(context: dg.OpExecutionContext, config: RejectForm) -> None:
        with in_one_sentence(REFUSALS):
            lake, by = LakeLayout.open(place, create=False), actor_of(config.name, config.reason, context)
            directory, seen = _read(lake, recipe.workload, config.release, config.digest)
            withdraw(lake, directory, by, seen)
            aliases = Endpoint(lake, recipe.workload).read()
            _conclude(context, lake, aliases, f"release {directory.name} is rejected; the champion stays")

    @dg.op(name="roll_back_endpoint", description="Checks the earlier release again, records who and why, moves the alias.")
    def rolling_back(context: dg.OpExecutionContext, config: RollbackForm) -> None:
        with in_one_sentence(REFUSALS):
            lake, by = LakeLayout.open(place, create=False), actor_of(config.name, config.reason, context)
            _, seen = Endpoint(lake, recipe.workload).seen()
            wanted = config.champion.strip()
            if wanted and not (seen.champion or "").startswith(wanted):
                raise EndpointError(
                    f"{recipe.workload}: release {seen.champion or 'none'} is the champion, not {wanted}: "
                    "nothing was rolled back"
                )
            named = find_release(lake, config.to.strip() or rollback_target(lake, recipe.workload), recipe.workload)
            aliases = roll_back(lake, _sure(named), by, seen, config.though_tainted)
            _conclude(context, lake, aliases, f"champion moved from {seen.champion} back to {aliases.champion}")

    return [
        form_job(
            "approve",
            approving,
            ApproveForm,
            "Approves a release, as `millrace approve` does: the form asks for its "
            "version, your name and a reason. Or lets a further alias name an approved release.",
            release=waiting,
        ),
        form_job(
            "reject",
            rejecting,
            RejectForm,
            "Refuses a candidate, or withdraws an approval, as `millrace reject` does. "
            "No run serves the release by itself then.",
            release=waiting,
        ),
        form_job(
            "rollback",
            rolling_back,
            RollbackForm,
            "Makes an earlier release champion again, as `millrace rollback` does, and withdraws the release that it replaces.",
        ),
    ]


def _candidate(place: Path, workload: str) -> str:
    """The release that is offered when the graph is loaded, for the forms to offer; "" for none."""
    with suppress(LakeError, EndpointError, EndpointLogError, ReleaseError, OSError):
        lake = LakeLayout.open(place, create=False)
        named = Endpoint(lake, workload).read().candidate or ""
        return named if named and read_release(lake.artefacts("release") / workload / named).passed else ""
    return ""


def _read(lake: LakeLayout, workload: str, release: str, digest: str) -> tuple[Path, Aliases]:
    """The named release, if it has the digest that was read, and the endpoint's aliases. Raises ReleaseError."""
    _, seen = Endpoint(lake, workload).seen()
    if not release.strip():
        waits = f"the candidate is {seen.candidate}" if seen.candidate else "there is no candidate now"
        raise ReleaseError(f"{workload}: no release is named: give the version of the release; {waits}")
    directory = _sure(find_release(lake, release.strip(), workload))
    if digest.strip():
        check_digest(directory, digest.strip())
    return directory, seen


def _sure(named: NamedRelease) -> Path:
    if not named.sure:
        raise UnsureNameError(
            f"{named.given!r} is only the beginning of release {named.directory.name}, and nothing was "
            f"changed: give at least {SHORTEST_SURE} characters of it"
        )
    return named.directory


def _conclude(context: dg.OpExecutionContext, lake: LakeLayout, aliases: Aliases | None, said: str) -> None:
    publish(lake)
    if aliases is not None:
        context.log_event(endpoint_moved(aliases))
    context.log.info(said)
    context.add_output_metadata({"decision": said})


REQUEST_REFUSALS = (RequestError, ActorError, LakeError, S3Error, OSError)


class RetrainForm(dg.Config):
    """Asks for a retraining; the sensor `decide` starts it."""

    name: str = NAME
    because: str = Field(default="", description="Why a retraining is wanted, in one line that is recorded; needed")
    action: str = Field(default="full", description=f"What is made again: {', '.join(ACTIONS)}")
    despite: list[str] = Field(default=[], description=f"What does not apply to this request: any of {', '.join(DESPITE)}")
    dry_run: bool = Field(default=False, description="true: only says what would be done; nothing is kept or started")


class WithdrawForm(dg.Config):
    """Takes back a request for a retraining that is not decided yet."""

    request: str = Field(
        default="", description="Id of the request: the job `retrain` says it, `millrace decisions` lists it; needed"
    )
    name: str = NAME
    because: str = Field(default="", description="Why it is not wanted any more, in one line that is recorded")


def request_jobs(recipe: Recipe, place: Path) -> list[dg.JobDefinition]:
    """The jobs of one recipe."""

    @dg.op(name="ask_for_retraining", description="Keeps the request with name and reason; the sensor `decide` decides it.")
    def asking(context: dg.OpExecutionContext, config: RetrainForm) -> None:
        with in_one_sentence(REQUEST_REFUSALS):
            lake, now = LakeLayout.open(place, create=False), datetime.now(UTC)
            by = actor_of(config.name, config.because, context)
            wanted = RetrainingRequest.of(recipe.workload, by, config.action, config.despite)
            if config.dry_run:
                decisions = Decisions(lake, recipe.workload).seen()
                decision, hold = preview(wanted, lake, recipe.facts, decisions, now)
                said = decision.preview_sentence(hold)
            else:
                request, is_new = Requests(lake, recipe.workload).ask(wanted, now)
                said = request.asked_sentence(is_new, recipe.facts.decide)
            _conclude_request(context, said)

    @dg.op(name="take_back_request", description="Records that the request is not wanted any more.")
    def withdrawing(context: dg.OpExecutionContext, config: WithdrawForm) -> None:
        with in_one_sentence(REQUEST_REFUSALS):
            lake, by = LakeLayout.open(place, create=False), actor_of(config.name, config.because, context)
            withdrawn = Requests(lake, recipe.workload).withdraw(config.request.strip(), by, datetime.now(UTC))
            _conclude_request(context, withdrawn.withdrawn_sentence)

    return [
        form_job(
            "retrain",
            asking,
            RetrainForm,
            "Asks for a retraining, as `millrace retrain` does: the form asks for your "
            "name, the reason, and what is to be made again. The sensor `decide` starts it at its next tick, within "
            "the budget, the quiet hours and the cool-down, unless the request says otherwise.",
        ),
        form_job(
            "withdraw_request",
            withdrawing,
            WithdrawForm,
            "Takes back a request for a retraining that is not decided yet, as `millrace retrain --withdraw` does.",
        ),
    ]


def _conclude_request(context: dg.OpExecutionContext, said: str) -> None:
    context.log.info(said)
    context.add_output_metadata({"request": said})
