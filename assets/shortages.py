"""Says in the run's log and its terminal what a dataset was asked for and has too few rows for."""

import dagster as dg

from resources.launching import relay
from resources.manifests import Manifest


def tell_shortages(context: dg.AssetExecutionContext, manifest: Manifest) -> None:
    """One line: the wishes that the rows do not fulfil and, of a mixture, the rows that it has instead."""
    if not manifest.metrics["notes"]:
        return
    name, sources = manifest.name.rpartition("/")[2], manifest.metrics.get("sources", {})
    total = sum(sources.values())
    instead = ", ".join(f"{source} {count:,} ({count / total:z.0%})" for source, count in sorted(sources.items()))
    message = f"{name}: {'; '.join(manifest.metrics['notes'])}{'; its training rows are ' + instead if instead else ''}"
    context.log.warning(message)
    relay({"event": "note", "message": message})
