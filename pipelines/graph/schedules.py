"""The two jobs (`logs` by day, `train` once over all days), what runs by the clock, and after a run of `train`: clearing, only
of a successful run's own assets, and the dashboard. An asset that traffic reaches also depends on `traffic_digest`, because
Dagster leaves out a dependency on all partitions (1.13, `CachingStaleStatusResolver._get_partition_dependencies`)."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path

import dagster as dg
from croniter import croniter

from pipelines.contract import Recipe
from pipelines.storage import storage_sentence
from resources.artefacts import remove_leftovers
from resources.digests import PACKAGES
from resources.erasing import RetentionSettings, remove_old_data
from resources.lake import LakeLayout, Tables
from resources.launching import JOB_TAG, relay
from resources.reporting import dashboard_path, write_dashboard
from resources.sources import Ledger
from resources.stages import logs_stages, stage

TRAIN = "train"


def jobs(
    workload: str, disabled: Collection[str] = ()
) -> "list[dg.unresolved_asset_job_definition.UnresolvedAssetJobDefinition]":
    of_logs = dg.AssetSelection.assets(*([workload, name] for name in logs_stages(disabled)))
    observed = dg.AssetSelection.assets([workload, "logs"])
    return [
        dg.define_asset_job(
            "logs",
            of_logs,
            hooks={failure_in_one_sentence},
            description="Reads new log files, cleans their rows and compares them with the reference window, one partition per "
            "UTC day; any range of days is one run.",
            tags={JOB_TAG: f"{workload}/logs"},
        ),
        dg.define_asset_job(
            TRAIN,
            dg.AssetSelection.all() - of_logs - observed,
            hooks={failure_in_one_sentence},
            description="From cleaned rows to a release candidate: datasets, models, drafter, evaluation, gates. Steps whose "
            "inputs did not change are reused. Moves the endpoint where the release is approved.",
            tags={JOB_TAG: f"{workload}/{TRAIN}"},
        ),
    ]


@dg.failure_hook(name="failure_in_one_sentence")
def failure_in_one_sentence(context: dg.HookContext) -> None:
    """Logs the sentence as an error of the step."""
    step = (context.step_key or "").split("__")[-1]
    context.log.error(f"{step}: {sentence_of(context.op_exception)}")


def sentence_of(error: BaseException | None) -> str:
    """What a person needs to know of a step's error."""
    if storage := storage_sentence(error, None):
        return storage
    chain = list(_chain(error))
    for each in chain:
        if isinstance(each, dg.Failure):
            return each.description or "it failed without a reason"
        if type(each).__module__.split(".")[0] in PACKAGES:
            return " ".join(str(each).split())
    kind = type(chain[0]).__name__ if chain else "an unknown error"
    return f"{kind}, which is a bug of millrace or of what it uses: please report it with the traceback of this step"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


PAUSE = timedelta(days=31)
"""The longest time without traffic whose days are partitions; also the last days before today, for schedules."""


def first_day(recipe: Recipe, place: Path) -> date:
    """The first day of traffic, from the recipe or the ledger; today if the lake has read nothing."""
    return recipe.first_day or min(_days_read(recipe, place), default=datetime.now(UTC).date())


def daily_partitions(recipe: Recipe, place: Path) -> dg.DailyPartitionsDefinition:
    """The partitions. Today's partition exists from the first minute, so that logs can be read as they arrive."""
    read, today = _days_read(recipe, place), datetime.now(UTC).date()
    start, last = recipe.first_day or min(read, default=today), recipe.last_day or today
    known = [day for day in read if start <= day <= last]
    pauses = [
        earlier + timedelta(days=ahead)
        for earlier, later in pairwise([*known, *({last - PAUSE} if known else ())])
        if later - earlier > PAUSE
        for ahead in range(1, (later - earlier).days)
    ]
    return dg.DailyPartitionsDefinition(
        start_date=start.isoformat(),
        exclusions=[datetime.combine(day, time(), UTC) for day in pauses] or None,
        **({"end_offset": 1} if recipe.last_day is None else {"end_date": (recipe.last_day + timedelta(days=1)).isoformat()}),
    )


def _days_read(recipe: Recipe, place: Path) -> list[date]:
    if not (place / "lake.json").exists():
        return []
    with Ledger.open(Tables(LakeLayout.open(place)), recipe.workload) as ledger:
        return ledger.days()


TRAFFIC_DIGEST = "traffic_digest"


def behind_traffic(workload: str, reads: Mapping[dg.AssetKey, Sequence[dg.AssetKey]]) -> set[dg.AssetKey]:
    """The assets outside the job `logs` that traffic reaches, directly or through others. The endpoint is not among them: it
    follows a release, and a person may let it wait."""
    of_logs = {dg.AssetKey([workload, name]) for name in logs_stages()}
    endpoint = dg.AssetKey([workload, stage("endpoint").name])
    behind: set[dg.AssetKey] = set()
    more = True
    while more:
        reached = {key for key, above in reads.items() if key not in of_logs and any(one in of_logs | behind for one in above)}
        more, behind = reached != behind, reached
    return behind - {endpoint}


LOOKED_AT = 400
"""Ticks of a cron schedule among which the longest pause is found: more than a year of days."""
DAY = timedelta(days=1)
LONGEST_LOGS = timedelta(hours=2)
"""How long after its schedule the job `logs` may take before there is a warning."""


def freshness_of(recipe: Recipe, name: str) -> dg.FreshnessPolicy | None:
    """The policy of an asset; None without a schedule, for traffic that has ended, and for assets that are not watched."""
    if not recipe.automation.retrain.enabled or recipe.last_day is not None:
        return None
    if name == TRAFFIC_DIGEST:
        return dg.FreshnessPolicy.time_window(warn_window=DAY + LONGEST_LOGS, fail_window=2 * DAY + LONGEST_LOGS)
    if name == last_of_train(recipe):
        pause = longest_pause(recipe.automation.retrain.cron)
        return dg.FreshnessPolicy.time_window(warn_window=1.25 * pause, fail_window=2.25 * pause)
    return None


def last_of_train(recipe: Recipe) -> str:
    """The last asset that every training makes. The endpoint is none: it moves only where somebody approved."""
    return "evaluation_report" if "release_candidate" in recipe.disabled else "release_candidate"


def longest_pause(cron: str) -> timedelta:
    """The longest time between two ticks of a cron schedule."""
    ticks = croniter(cron, datetime(2026, 1, 1, tzinfo=UTC))
    times = [ticks.get_next(datetime) for _ in range(LOOKED_AT)]
    return max(later - earlier for earlier, later in pairwise(times))


def schedules(recipe: Recipe, logs_job, train_job) -> list[dg.ScheduleDefinition]:
    status = dg.DefaultScheduleStatus.RUNNING if recipe.automation.retrain.enabled else dg.DefaultScheduleStatus.STOPPED
    decides = recipe.automation.decide.enabled  # then the sensor `decide` looks at the cron, within its budget
    return [
        _daily_logs(recipe, logs_job, status),
        dg.ScheduleDefinition(
            name="retraining",
            job=train_job,
            cron_schedule=recipe.automation.retrain.cron,
            default_status=dg.DefaultScheduleStatus.STOPPED if decides else status,
            description="Runs the job train at the times of `automation.retrain.cron`: rebuilds datasets, models and drafter "
            "from the traffic so far; steps whose inputs did not change are reused.",
        ),
    ]


def _daily_logs(recipe: Recipe, logs_job, status: dg.DefaultScheduleStatus) -> dg.ScheduleDefinition:
    @dg.schedule(
        name="daily_logs",
        job=logs_job,
        cron_schedule="0 1 * * *",
        default_status=status,
        description="Runs the job logs every day at 01:00 UTC over the day before: reads what the gateway wrote, and cleans "
        "every day that late lines belong to.",
    )
    def daily_logs(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        yesterday = (context.scheduled_execution_time - timedelta(days=1)).date()
        if recipe.last_day is not None and yesterday > recipe.last_day:
            return dg.SkipReason(f"this recipe's traffic ended on {recipe.last_day}")
        return dg.RunRequest(run_key=yesterday.isoformat(), partition_key=yesterday.isoformat())

    return daily_logs


def clear_after(
    context: dg.InitResourceContext, lake: LakeLayout, workload: str, keep_s: float | None, everything: Collection[str]
) -> None:
    """Removes leftovers older than `keep_s` seconds (None: nothing) and reports it on the terminal and in the run's log.
    `everything` names the assets of a whole `train` run."""
    run = context.run
    if run is None or run.job_name != TRAIN or context.instance is None:
        return
    if context.instance.get_run_stats(run.run_id).steps_failed:
        return
    selected = {key.path[-1] for key in run.asset_selection or ()}
    whole = not selected or selected >= set(everything)
    for leftover in remove_leftovers(lake, workload, keep_s, None if whole else selected):
        relay({"event": "note", "message": leftover.sentence()})
        if context.log is not None:
            context.log.info(leftover.sentence())


def dashboard_after(context: dg.InitResourceContext, lake: LakeLayout, workload: str) -> None:
    """Also after a failed run, whose page says what there is. A page that cannot be written fails no run: its log says so."""
    run = context.run
    if run is None or run.job_name != TRAIN:
        return
    try:
        write_dashboard(lake, workload, dashboard_path(lake, workload))
    except Exception as error:  # the run's work is done; `millrace report` makes the page again and shows the error
        if context.log is not None:
            context.log.warning(f"the dashboard was not written ({type(error).__name__}): millrace report {workload} says why")


AT = "30 2 * * *"
WAITS_S, TRIES = 600, 12
"""While a run holds the lake, the job tries again every ten minutes for two hours; the next night is another try."""


def retention(recipe: Recipe, place: Path) -> tuple[list[dg.JobDefinition], list[dg.ScheduleDefinition]]:
    """Job and schedule of a recipe with `retention`; none without."""
    settings: RetentionSettings | None = recipe.retention
    if settings is None:
        return [], []

    @dg.op(retry_policy=dg.RetryPolicy(max_retries=TRIES, delay=WAITS_S))
    def remove_what_is_old(context: dg.OpExecutionContext) -> None:
        """Removes rows, versions and table files that are older than the recipe's `retention`."""
        removed = remove_old_data(LakeLayout.open(place), recipe.workload, settings)
        context.log.info(
            f"rows removed by table: {removed.rows or 'none'}; emptied: {removed.emptied or 'none'}; versions: "
            f"{len(removed.versions)}; bytes of old table files: {removed.old_bytes:,}"
        )

    @dg.job(
        name="retention",
        description="Removes rows, versions and old table files that are older than the recipe's "
        "`retention`. Keeps whatever a release or a current artefact was made from.",
    )
    def job() -> None:
        remove_what_is_old()

    schedule = dg.ScheduleDefinition(
        name="nightly_retention",
        job=job,
        cron_schedule=AT,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Runs the job retention every night at 02:30 UTC, while the Dagster daemon runs.",
    )
    return [job], [schedule]
