"""Prints releases for `approve`, `withdraw` and `rollback`: the release, which alias moved, how to undo it."""

from pathlib import Path

from rich.console import Console

from resources.endpoints import Actor, Aliases, Approvals, Endpoint, champions_before, rollback_of
from resources.lake import LakeLayout
from resources.manifests import APPROVAL_PAGE, read_manifest
from resources.releases import erased_rows, gate_problem, read_release


def show(console: Console, lake: LakeLayout, directory: Path, seen: Aliases) -> None:
    """Prints the release to decide on: full versions and digests, gates, and the current champion."""
    release, manifest = read_release(directory), read_manifest(directory)
    _print(console, f"release {directory.name} of {directory.parent.name}")
    _print(console, f"  made      {manifest.created_at:%Y-%m-%d %H:%M} UTC")
    _print(console, f"  digest    {manifest.digest}")
    _print(console, f"  target    {release.target.name}@{release.target.version}")
    if release.base is not None and release.adapter is not None:
        _print(console, f"  adapter   rank {release.adapter.rank}, on base {release.base.name}@{release.base.version}")
    if release.speculator is not None:
        drafts = f"{release.architecture}, {release.num_speculative_tokens} tokens a draft"
        _print(console, f"  drafter   {release.speculator.name}@{release.speculator.version} ({drafts})")
    _print(console, f"  serves    {release.served_drafting.label}")
    if release.worth:
        _print(console, f"  worth     {release.worth}")
    for gate in release.gates:
        problem = gate_problem(gate)
        said = problem.partition(": ")[2] if problem else gate.why or gate.held
        mark = {"holds": "✓", "missed": "✗"}.get(gate.state, "?")
        _print(console, f"  {mark} gate    {gate.name}: {said}")
    if rows := erased_rows(lake, release):
        _print(console, f"  ! tainted  its weights learnt {rows:,} rows that were erased since (millrace forget)")
    if (back := rollback_of(Endpoint(lake, directory.parent.name).entries(), directory.name)) is not None:
        _print(console, f"  ! served   {back.rollback_sentence}")
    _print(console, f"  champion  {_champion(lake, seen)}")
    if (directory / APPROVAL_PAGE).exists():
        _print(console, f"  read      {directory / APPROVAL_PAGE}")


def say_approved(
    console: Console, lake: LakeLayout, seen: Aliases, aliases: Aliases, by: Actor, again: bool, approvals: Approvals
) -> None:
    """Prints an approval. again: the release was approved before."""
    signed = f", signed: {', '.join(approvals.people)}" if approvals.keys else ""
    approved = f"approved {'once more ' if again else ''}by {_who(by)}{signed}"
    if aliases.champion == seen.champion:
        _ok(console, f"{aliases.workload}: release {aliases.champion} is the champion already; {approved}")
    else:
        _ok(console, f"{aliases.workload}: champion moved from {seen.champion or 'none'} to {aliases.champion}; {approved}")
    if seen.champion and aliases.champion != seen.champion:
        _print(console, f"  undo: millrace rollback {aliases.workload} {lake.typed_option}")
    _advise(console, by)


def say_waiting(console: Console, directory: Path, approvals: Approvals) -> None:
    """Prints that an approval is recorded and others are missing."""
    people = ", ".join(approvals.people) or "nobody"
    _print(
        console,
        f"{directory.parent.name}: release {directory.name} is approved by {people}; {approvals.needed} "
        f"{'has' if approvals.missing == 1 else 'have'} to approve it. No alias moved",
    )
    for sentence in approvals.refused:
        _print(console, f"  ! {sentence}")


def say_named(console: Console, aliases: Aliases, alias: str) -> None:
    named = aliases.named.get(alias)
    _ok(console, f"{aliases.workload}: {alias} names release {named}" if named else f"{aliases.workload}: {alias} is removed")


def say_rolled_back(console: Console, lake: LakeLayout, seen: Aliases, aliases: Aliases, by: Actor) -> None:
    moved = f"champion moved from {seen.champion} back to {aliases.champion}"
    _ok(console, f"{aliases.workload}: {moved}; rolled back by {_who(by)}")
    _print(console, f"  release {seen.champion} counts as withdrawn: no run and no rollback serves it again by itself")
    _print(console, f"  undo: millrace rollback {aliases.workload} --to {seen.champion} {lake.typed_option}")
    _advise(console, by)


def say_withdrawn(console: Console, lake: LakeLayout, directory: Path, by: Actor) -> None:
    _ok(console, f"{directory.parent.name}: release {directory.name} is withdrawn by {_who(by)}; the champion stays")
    workload = directory.parent.name
    if Endpoint(lake, workload).was_champion(directory.name):
        _print(console, f"  undo: millrace rollback {workload} --to {directory.name} {lake.typed_option}")
    _advise(console, by)


def _champion(lake: LakeLayout, seen: Aliases) -> str:
    if seen.champion is None:
        return "none yet"
    entries = Endpoint(lake, seen.workload).entries()
    moves = [entry for entry in entries if entry.action in ("promoted", "rolled back", "found")]
    began = next((entry for entry in reversed(moves) if entry.champion == seen.champion), None)
    since = f", since {began.at:%Y-%m-%d %H:%M} UTC by {began.by}" if began else ""
    earlier = len(champions_before(entries)) - 1
    return f"{seen.champion} at this moment{since}" + (f"; champions before it: {earlier}" if earlier > 0 else "")


def _who(by: Actor) -> str:
    return f"{by.name} ({by.identity_from})"


def _advise(console: Console, by: Actor) -> None:
    if by.identity_from == "system account":
        _print(console, f"  {by.name} is the system's account: set MILLRACE_USER to put your own name on record")


def _ok(console: Console, text: str) -> None:
    console.print("✓", style="green", end=" ")
    _print(console, text)


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
