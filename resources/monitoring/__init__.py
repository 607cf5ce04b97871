"""What is known of a release in service. metrics/ reads vLLM's and SGLang's /metrics into the table serving_metrics, by window
and release. champions/ compares a new champion with the one before it for a stated time and rolls back if it does worse.
alerts/ tells people of drift, failed runs and waiting releases, each cause once, by webhook, Slack or mail. Drift itself is
measured in drifting/, and retraining is decided in deciding/. Start with champions/watch.py, metrics/scraper.py or
alerts/tell.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.monitoring.alerts.outbox import LOOKS_BACK
    from resources.monitoring.alerts.release_alerts import (
        DECISION_JOBS,
        FailedRun,
        budget_alerts,
        drift_alerts,
        failed_run_alerts,
        release_alerts,
    )
    from resources.monitoring.alerts.settings import Alert, AlertSettings
    from resources.monitoring.alerts.tell import tell
    from resources.monitoring.champions.evidence import WatchSignal
    from resources.monitoring.champions.watch import Look, WatchedSessions, look_after_promotion
    from resources.monitoring.metrics.scraper import EVERY_S, Scraper, scrape
    from resources.monitoring.metrics.target import ScrapeError

__getattr__, __dir__, __all__ = door(__name__, __file__)
