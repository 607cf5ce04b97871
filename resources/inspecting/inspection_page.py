"""Renders an inspection as one self-contained HTML file with charts in SVG, and its tables for the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from model_ops.files import write_text
from model_ops.jobs import counted, plural
from resources.curating import FeedbackRules, guessed_bound
from resources.inspecting.findings import Inspection
from resources.inspecting.inspection import DRAFTS, MOST_NAMED, proposal_text
from resources.inspecting.overview import REMEDY, far_days
from resources.reading import fields_line, fields_of
from resources.records import page_environment

TEMPLATES = Path(__file__).with_name("templates")
MOST_BARS = 120


@dataclass(frozen=True)
class InspectionTable:
    """One table with its note."""

    title: str
    heads: tuple[str, ...]
    """Names of the columns, with > before a right-aligned one."""
    rows: Sequence[tuple[str, ...]]
    note: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(head.removeprefix(">") for head in self.heads)

    @property
    def right(self) -> frozenset[int]:
        """Indices of the right-aligned columns."""
        return frozenset(place for place, head in enumerate(self.heads) if head.startswith(">"))


def write_page(inspection: Inspection, path: Path) -> None:
    """Writes the report atomically. Raises OSError where the path cannot be written."""
    environment = page_environment(TEMPLATES)
    page = environment.get_template("inspection.html.j2").render(
        inspection=inspection,
        headline=headline(inspection),
        sections=sections(inspection),
        days=day_bars(inspection),
        shapes=shape_bars(inspection),
        proposal=proposal_text(inspection.proposed).strip(),
    )
    write_text(path, page)


def headline(inspection: Inspection) -> list[tuple[str, str]]:
    totals = inspection.totals
    lost = sum(item["lines"] for item in inspection.quarantined)
    figures = [
        (f"{totals['requests']:,}", plural(totals["requests"], "request")),
        (f"{totals['days']:,}", f"{plural(totals['days'], 'day')} with traffic"),
        (short(totals["tokens_in"]), "prompt tokens"),
        (short(totals["tokens_out"]), "answer tokens"),
        (f"{lost:,}", f"{plural(lost, 'line')} that cannot be read"),
    ]
    if totals["rows"]:
        figures.append((("≤ " if inspection.sampled else "") + f"{inspection.usable_share:z.0%}", "would survive curation"))
        if inspection.acceptance.get("K3"):
            figures.append((f"{inspection.acceptance['K3']:.2f}", "tokens a forward, n-gram drafter, K = 3"))
    return figures


def short(number: float) -> str:
    """1,234 as 1,234; 12,345 as 12.3k; 1,234,567 as 1.23M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / min(size, 1e9 if letter == 'B' else 1e6 if letter == 'M' else 1e3):.3g}{letter}"
    return f"{number:,.0f}"


def sections(inspection: Inspection) -> list[InspectionTable]:
    parts = [_formats(inspection), _quarantine(inspection), _unread(inspection)]
    if inspection.totals["rows"]:
        more = (_health, _names, _sizes, _decisions, _examples, _pii, _languages, _shapes, _acceptance)
        parts += [table(inspection) for table in more]
    parts.append(_feedback(inspection))
    return [part for part in parts if part.rows]


def _share(count: float, of: float) -> str:
    return f"{count / of:z.1%}" if of else ""


def _formats(inspection: Inspection) -> InspectionTable:
    rows = [
        (item["format"], f"{item['objects']:,}", f"{item['bytes'] / 1e6:,.1f}", f"{item['records']:,}", item["first_object"])
        for item in inspection.formats
    ]
    were = "was" if inspection.limited_to == 1 else "were"
    note = (
        f"Only {counted(inspection.limited_to, 'object')}, spread evenly, {were} read: all counts are of this part."
        if inspection.limited_to
        else ""
    )
    for item in inspection.failed:
        note += f" {item['objects']:,} cannot be read, {item['first_object']} first: {item['problem']}."
    if far := far_days({item["day"]: item["rows"] for item in inspection.days}):
        note += f" {far}: {REMEDY}."
    return InspectionTable("Files", ("format", ">objects", ">MB", ">records", "first object"), rows, note.strip())


def _quarantine(inspection: Inspection) -> InspectionTable:
    rows = [(item["code"], f"{item['lines']:,}", item["first_place"], item["message"]) for item in inspection.quarantined]
    columns = ("code", ">lines", "first place", "what is wrong there")
    return InspectionTable("Lines and files that cannot be read", columns, rows, "")


def _unread(inspection: Inspection) -> InspectionTable:
    rows = []
    notes = [f"{counted(count, 'record')} with two values of {said}." for said, count in inspection.clashes.items()]
    for uri, keys in inspection.unread.items():
        rows += [
            (key.path, f"{key.records:,}", fields_line({key.field: key.path}) if key.field else "") for key in keys[:MOST_NAMED]
        ]
        if len(keys) > MOST_NAMED:
            rows.append((f"and {len(keys) - MOST_NAMED:,} more", "", ""))
        if fields := fields_of(keys):
            notes.append(f"A guess to check, for the source {uri} of a recipe: {fields_line(fields)}.")
    return InspectionTable("Keys that nothing reads", ("key", ">records", "what would read it"), rows, " ".join(notes))


def _health(inspection: Inspection) -> InspectionTable:
    totals = inspection.totals
    rows, copies = totals["rows"], totals["rows"] - totals["different_rows"]
    counts = [
        ("failed requests", totals["failed"]),
        ("answers from a cache", totals["cache_hits"]),
        ("answers cut off at a token limit", totals["truncated"]),
        ("same messages and answer as another row", copies),
        ("repeated records (not among the rows)", inspection.repeated["rows"]),
        ("rows with exact served token ids", totals["with_token_ids"]),
    ]
    return InspectionTable(
        "Health",
        ("", ">rows", ">share"),
        [(name, f"{count:,}", _share(count, rows)) for name, count in counts],
        "Exact, over all rows.",
    )


def _names(inspection: Inspection) -> InspectionTable:
    rows = []
    for kind, items in (("workload", inspection.workloads), ("client", inspection.clients), ("model", inspection.models)):
        for item in items[:MOST_NAMED]:
            rows.append(
                (
                    kind,
                    item["name"] or "(not named)",
                    f"{item['rows']:,}",
                    _share(item["rows"], inspection.totals["rows"]),
                    short(item["tokens_in"]),
                    short(item["tokens_out"]),
                    _share(item["failed"], item["rows"]),
                )
            )
        if len(items) > MOST_NAMED:
            rows.append((kind, f"and {len(items) - MOST_NAMED:,} more", "", "", "", "", ""))
    logged = inspection.totals["logged"] / inspection.totals["rows"]
    note = (
        "Tokens are the log's own."
        if logged == 1
        else (f"Tokens are the log's own on {logged:z.0%} of the rows; elsewhere estimated at 4 characters of JSON text each.")
    )
    return InspectionTable(
        "Workloads, clients, models", ("", "name", ">rows", ">share", ">tokens in", ">tokens out", ">failed"), rows, note
    )


def _sizes(inspection: Inspection) -> InspectionTable:
    totals, sessions = inspection.totals, inspection.sessions
    measured = [
        ("prompt tokens", totals["tokens_in_at"]),
        ("answer tokens", totals["tokens_out_at"]),
        ("latency, ms", totals["latency_ms_at"]),
        ("time to the first token, ms", totals["ttft_ms_at"]),
        ("requests in a session", sessions.get("requests_at")),
    ]
    rows = [(name, *(f"{value:,.0f}" for value in at)) for name, at in measured if at and at[0] is not None]
    note = (
        (
            f"{counted(sessions['sessions'], 'session')}, {_share(sessions['single'], sessions['sessions'])} of one request, "
            f"the longest of {counted(sessions['longest'], 'request')}."
        )
        if sessions.get("sessions")
        else ""
    )
    if totals["at_midnight"]:
        note += (
            f" {_share(totals['at_midnight'], totals['rows'])} of the requests seem to have no time of "
            "their own: they count under their file's day, so figures by day are unreliable."
        )
    return InspectionTable("Sizes and times", ("", ">median", ">90 %", ">99 %"), rows, note.strip())


def _decisions(inspection: Inspection) -> InspectionTable:
    rows = [
        (item["rule"].replace("_", " "), item["stage"], f"{item['rows']:,}", _share(item["rows"], inspection.sample_rows))
        for item in inspection.decisions
    ]
    note = "What curation's rules, with their defaults, would keep and drop."
    if inspection.sampled:
        note += (
            f" On a sample of {inspection.sample_rows:,} rows in whole sessions: it has both copies of a pair less often "
            "than one of them, so the share of duplicates is a lower bound."
        )
    return InspectionTable("If it were curated", ("decision", "stage", ">rows", ">share"), rows, note)


def _examples(inspection: Inspection) -> InspectionTable:
    rows = [(item["rule"].replace("_", " "), item["place"], item["detail"], item["kept_place"]) for item in inspection.examples]
    note = "The first three rows of each rule, to look at before anything runs. A key under `curation` switches a rule off."
    return InspectionTable("Rows that would be dropped", ("rule", "place", "detail", "kept instead"), rows, note)


def _pii(inspection: Inspection) -> InspectionTable:
    rows = [
        (item["kind"], f"{item['found']:,}", f"{item['rows']:,}", _share(item["rows"], inspection.sample_rows))
        for item in inspection.pii
    ]
    note = "Counts only; curation puts placeholders in their place."
    return InspectionTable("Personal data", ("kind", ">values", ">rows", ">share"), rows, note)


def _languages(inspection: Inspection) -> InspectionTable:
    rows = [
        (item["language"] or "(unknown)", f"{item['rows']:,}", f"{item['share']:z.1%}")
        for item in inspection.languages[:MOST_NAMED]
    ]
    return InspectionTable("Languages", ("language", ">rows", ">share"), rows, "Of answers that did not fail.")


def _shapes(inspection: Inspection) -> InspectionTable:
    rows = []
    for shape in inspection.shapes[:MOST_NAMED]:
        taus = shape["acceptance"] or {}
        rows.append(
            (shape["shape"], f"{shape['rows']:,}", f"{shape['share']:z.1%}", *(_tau(taus.get(f"K{k}")) for k in DRAFTS))
        )
    note = (
        f"{counted(len(inspection.shapes), 'shape')}: what the session asks for, past its greeting, or the tool whose result a "
        "turn brings, and a hash of client, instructions and tools. The drafter's acceptance is measured from 20 answers on."
    )
    columns = ("shape", ">rows", ">share", *(f">tau, K = {k}" for k in DRAFTS))
    return InspectionTable("Prompt shapes", columns, rows, note)


def _tau(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _acceptance(inspection: Inspection) -> InspectionTable:
    measured = inspection.acceptance
    if measured.get("K3") is None:
        return InspectionTable("", (), [])
    rows = [("all", *(_tau(measured[f"K{k}"]) for k in DRAFTS))]
    rows += [
        (name or "(not named)", *(_tau(taus[f"K{k}"]) for k in DRAFTS))
        for name, taus in list(measured["workloads"].items())[:MOST_NAMED]
        if len(measured["workloads"]) > 1
    ]
    how = f"on {counted(measured['exact_rows'], 'answer')} with the log's own token ids" if measured["exact_rows"] else ""
    pieces = (
        f"on {counted(measured['pieces_rows'], 'answer')} cut into pieces of words and bytes (about as long as a large "
        "vocabulary's tokens)"
        if measured["pieces_rows"]
        else ""
    )
    note = (
        "Acceptance length (tokens emitted per forward) of prompt lookup along the logged answers, "
        f"{' and '.join(filter(None, (how, pieces)))}. It needs no training: a trained drafter must beat it."
    )
    return InspectionTable("An n-gram drafter", ("workload", *(f">tau, K = {k}" for k in DRAFTS)), rows, note)


def _feedback(inspection: Inspection) -> InspectionTable:
    rows = [
        (
            item["name"],
            f"{item['records']:,}",
            _tau(item["mean"]),
            f"{item['below_zero']:,}",
            f"{item['tied']:,}",
            f"{item['several']:,}",
            f"{item['records'] - item['tied'] - item['several']:,}",
        )
        for item in inspection.feedback
    ]
    notes = []
    if inspection.with_feedback and inspection.sample_rows:
        notes.append(
            f"{_share(inspection.with_feedback['rows'], inspection.sample_rows)} of the rows have feedback, "
            f"{_share(inspection.with_feedback['below_zero'], inspection.sample_rows)} below zero."
        )
    known = FeedbackRules().least
    bounds = [
        (item["name"], bound[0]) for item in inspection.feedback if item["name"] not in known and (bound := guessed_bound(item))
    ]
    if scales := [name for name, rule in bounds if rule == "least"]:
        notes.append(
            f"Each value of {', '.join(scales)} above 0 counts as a thumb up unless `curation.feedback.least` names the "
            "lowest good one; `init` writes a guess."
        )
    if scales := [name for name, rule in bounds if rule == "most"]:
        notes.append(f"Less of {', '.join(scales)} is better: it counts for nothing unless `curation.feedback.most` has it.")
    return InspectionTable(
        "Feedback",
        ("name", ">records", ">mean", ">below zero", ">about one request", ">about several", ">about none read"),
        rows,
        " ".join(notes),
    )


def day_bars(inspection: Inspection) -> dict[str, Any]:
    """Rows per day as bars of a 720 by 120 SVG; days without traffic are gaps. Longer spans are summed into fewer bars."""
    if not inspection.days:
        return {}
    first, last = inspection.days[0]["day"], inspection.days[-1]["day"]
    span = (last - first).days + 1
    step = -(-span // MOST_BARS)
    counts = [0] * -(-span // step)
    for item in inspection.days:
        counts[(item["day"] - first).days // step] += item["rows"]
    width, most = 720 / len(counts), max(counts)
    bars = [
        {
            "x": round(place * width, 2),
            "width": round(min(max(width - max(1.0, width * 0.15), 0.5), 48), 2),
            "height": round(max(count / most * 120, 1.5 if count else 0), 2),
            "rows": f"{count:,}",
            "day": (first + timedelta(days=place * step)).isoformat(),
        }
        for place, count in enumerate(counts)
    ]
    return {"bars": bars, "first": first.isoformat(), "last": last.isoformat(), "most": f"{most:,}", "step": step}


def shape_bars(inspection: Inspection) -> list[dict[str, Any]]:
    """The most frequent prompt shapes: share of the rows, and acceptance length at K = 3 on a scale from 1 to 4. Widths are
    percentages of their column."""
    top = inspection.shapes[:MOST_NAMED]
    most = top[0]["share"] if top else 1
    bars = []
    for shape in top:
        word, _, key = shape["shape"].partition("#")
        tau = (shape["acceptance"] or {}).get("K3")
        bars.append(
            {
                "shape": word or "(no word)",
                "key": key,
                "share": f"{shape['share']:z.1%}",
                "tau": _tau(tau),
                "width": round(shape["share"] / most * 100, 1),
                "reach": round(min((tau or 1) - 1, 3) / 3 * 100, 1),
            }
        )
    return bars
