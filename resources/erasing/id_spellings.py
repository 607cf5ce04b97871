"""Ids that may mean the person or the conversation that an erasure asks for, written in another way.

    for sentence in near_ids(tables, "user", "Ann"): print(sentence)      # a user named ann has 3 rows: ...

User ids are hashed, so ways to write the asked one are tried; ids of sessions and requests are compared without case.
"""

import re
import shlex
from collections.abc import Iterator

from model_ops.jobs import counted
from resources.digests import keyed_hash, user_of
from resources.erasing.journal import Kind
from resources.lake import PARTITIONS, SCHEMAS, Tables, attach_files, rows, run, workbench


def near_ids(tables: Tables, kind: Kind, identifier: str) -> Iterator[str]:
    """Sentences on other ids of the lake that differ from the asked one in case, quotes, blanks or a mail address's tag."""
    hashes = {keyed_hash(way): way for way in _ways(identifier)} if kind == "user" else {}
    with workbench() as connection:
        for name in ("interactions", "retired"):
            attach_files(connection, name, SCHEMAS[name], tables.files(name), PARTITIONS[name])
        run(connection, "erasing/known_interactions")
        near_rows = rows(connection, "erasing/ids_near", kind=kind, hashes=list(hashes), asked=identifier.strip())
    for row in near_rows.to_pylist():
        near = hashes.get(row["id"], row["id"])
        yield f"another {kind} of almost this id has {counted(row['rows'], 'row')}: --{kind} {shlex.quote(near)}"


def _ways(identifier: str) -> set[str]:
    """Other ways to write a user's id."""
    plain = identifier.strip().strip("\"'`<>()[]").strip()
    said = {plain, *(way(plain) for way in (str.lower, str.upper, str.title, str.capitalize, str.swapcase))}
    said |= {re.sub(r"\+[^@]*@", "@", each) for each in said}
    said |= {f"{opening}{plain}{closing}" for opening, closing in ('""', "''", "``", "<>", "()", "[]")}
    return {user_of(each) for each in said if each} - {user_of(identifier)}
