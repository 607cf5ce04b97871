"""logs: the gateway's own files. Observed in place, never copied."""

import dagster as dg

from assets.ownership import OWNERS, TRAFFIC

logs = dg.AssetSpec(
    "logs",
    group_name=TRAFFIC,
    kinds={"jsonl"},
    owners=OWNERS,
    description=(
        "Request logs and feedback files as the gateway wrote them, at the URIs of the recipe's `sources:`. Read in place, "
        "never copied; an observation counts new and unread objects."
    ),
)
