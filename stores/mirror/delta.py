"""Commits to Delta tables in a bucket (delta-rs): settings, lost answers, lost races. delta-rs writes the file of a commit only
if there is none of that version. If two machines commit at once, rows that both append stay, and one of two replacements of the
same days is refused. A commit whose answer was lost is not written twice: each names its process and a number, which the log
keeps.
"""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from stores.lake_error import LakeError

PATIENCE = "60s"


def storage_options() -> dict[str, str]:
    """delta-rs's settings for a bucket, from the usual AWS settings (stores/s3.py says which). Not stored."""
    import botocore.session

    session = botocore.session.Session()
    region = os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"
    options = {"AWS_REGION": region, "timeout": PATIENCE, "aws_conditional_put": "etag"}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        options["AWS_ENDPOINT_URL"] = endpoint
        options["AWS_ALLOW_HTTP"] = str(urlsplit(endpoint).scheme == "http").lower()
    credentials = session.get_credentials()
    if credentials is None:
        return {**options, "AWS_SKIP_SIGNATURE": "true"}
    keys = credentials.get_frozen_credentials()
    options |= {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
    return {**options, "AWS_SESSION_TOKEN": keys.token} if keys.token else options


def opened_there(uri: str, options: dict[str, str]) -> DeltaTable | None:
    """The table in the bucket at its newest version, or None if nothing was ever committed to it."""
    try:
        return DeltaTable(uri, storage_options=options)
    except (TableNotFoundError, FileNotFoundError):
        return None


@contextmanager
def committing(uri: str, options: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Settings of one commit. Raises LakeError if another machine changed the same rows meanwhile."""
    process, number = _process(os.getpid()), time.time_ns()
    try:
        yield {
            "storage_options": options,
            "commit_properties": CommitProperties(app_transactions=[Transaction(process, number)]),
        }
    except (DeltaError, OSError) as error:
        table = opened_there(uri, options)
        if table is not None and table.transaction_version(process) == number:
            return
        if isinstance(error, CommitFailedError) or "already exists" in str(error):
            raise LakeError(
                f"another machine changed the same rows of {uri} meanwhile: nothing of this change was kept; run it again"
            ) from error
        raise LakeError(
            f"the store refused or did not finish a commit to {uri} ({type(error).__name__}): check that the keys "
            "in use may read and write there, and run it again"
        ) from error


@cache
def _process(pid: int) -> str:
    return f"millrace-{uuid.uuid4().hex}"
