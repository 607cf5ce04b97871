"""Recipes that the webserver of `millrace up` could not load: `--check` and the log say so, since all processes run then.

    location_errors("http://127.0.0.1:3000")       # {"shop": "Conflicting definitions ..."}; None while it does not answer
"""

from __future__ import annotations

import json
from contextlib import suppress

import urllib3

QUERY = ("{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus "
         "locationOrLoadError { __typename ... on PythonError { message } } } } } }")
TIMEOUT_S = 5.0
MOST_CHARACTERS = 300


def location_errors(url: str) -> dict[str, str] | None:
    """The first line of each code location's error; {} if all are loaded. None while the webserver does not answer or loads."""
    with suppress(urllib3.exceptions.HTTPError, ValueError, KeyError, TypeError):
        answer = urllib3.request("POST", f"{url}/graphql", json={"query": QUERY}, timeout=TIMEOUT_S, retries=False)
        entries = json.loads(answer.data)["data"]["workspaceOrError"]["locationEntries"]
        if all(entry["loadStatus"] == "LOADED" for entry in entries):
            return {entry["name"]: _first_line(found["message"]) for entry in entries
                    if (found := entry["locationOrLoadError"])["__typename"] == "PythonError"}
    return None


def _first_line(message: str) -> str:
    """A message has a traceback's lines after its sentence."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0][:MOST_CHARACTERS] if lines else "no reason is given"
