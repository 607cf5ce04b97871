"""Inspects logs before anything is built: the pipeline's own ingest reads them in place into a temporary lake. Counts cover
everything; of more than `sample` rows, the expensive measures run on whole sessions drawn by hash. The result has only ids,
counts and the words of prompt shapes, never what users wrote."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from pydantic import ValidationError

from model_ops.jobs import Misuse, counted
from resources.curating import MACROS, CurationSettings, RaggedLists, clean, curate, feedback_by_name
from resources.inspecting.findings import Inspection, verdicts_of
from resources.inspecting.overview import first_look
from resources.lake import LakeLayout, Tables, attach_slice, rows, run, workbench
from resources.reading import IngestReport, ingest, sum_keys
from resources.records import FieldMapping
from resources.sources import SourceError, SourceSettings, list_objects

WORKLOAD = "inspected"
SAMPLE = 50_000
"""Most rows that are cleaned, compared and drafted on."""
SAMPLE_CHARACTERS = 400_000_000
"""Most characters in the sample: memory stays bounded however long the prompts are."""
DRAFTED_CHARACTERS = 24_000_000
"""Most characters on which the n-gram drafter is measured."""
DRAFTS = (3, 5)
"""Numbers of speculative tokens (K) that are measured."""
MOST_NAMED = 12


class InspectError(Misuse):
    """The logs have nothing to inspect; the message says why and what to change."""


def inspect(
    uris: Sequence[str],
    format: str = "auto",
    sample: int = SAMPLE,
    limit_objects: int | None = None,
    tell: Callable[[str], None] = lambda doing: None,
    fields: Mapping[str, FieldMapping] = MappingProxyType({}),
) -> Inspection:
    """Inspects the logs under `uris`; fields: mappings of their unknown records, by uri. `tell` is called with a few words at
    each step, for a progress line. Raises SourceError for a uri without objects and InspectError if no record of a known format
    was found."""
    with TemporaryDirectory(prefix="millrace-inspect-") as folder:
        tables = Tables(LakeLayout.open(Path(folder) / "all"))
        tell(f"reading {', '.join(uris)}")
        try:
            sources = _sources(uris, format, limit_objects, fields)
            report = ingest(tables, WORKLOAD, sources)
        except SourceError as error:  # an internal source, which has no name to show
            raise SourceError(str(error).partition(": ")[2]) from error
        inspection = _counted(tables, list(uris), report, limit_objects, sources)
        if inspection.totals["rows"]:
            inspection.sampled = inspection.totals["rows"] > sample or inspection.totals["characters"] > SAMPLE_CHARACTERS
            if inspection.sampled:
                share = min(sample / inspection.totals["rows"], SAMPLE_CHARACTERS / inspection.totals["characters"])
                tell(f"drawing about {share:z.1%} of {inspection.totals['rows']:,} rows")
                tables = _sample(tables, Tables(LakeLayout.open(Path(folder) / "sample")), share)
            tell("cleaning, looking for personal data")
            days = sorted(tables.rows_by_day("interactions", WORKLOAD))
            inspection.sample_rows = clean(tables, WORKLOAD, days, CurationSettings()).read
            tell("comparing rows with each other")
            curate(tables, WORKLOAD, Path(folder) / "curated", CurationSettings(), None)
            tell("drafting along the answers")
            _add_sampled(tables, inspection)
    inspection.verdicts = verdicts_of(inspection)
    return inspection


def _uri_of(name: str, uris: Sequence[str]) -> str:
    return uris[int(name.split("-")[1]) - 1]


def _sources(
    uris: Sequence[str], format: str, limit: int | None, fields: Mapping[str, FieldMapping]
) -> dict[str, SourceSettings]:
    try:
        sources = {
            f"input-{number}": SourceSettings(uri=uri, format=format, fields=fields.get(uri))
            for number, uri in enumerate(uris, 1)
        }
    except ValidationError as error:
        raise InspectError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
    if limit is None:
        return sources
    listed = [item for name, source in sources.items() for item in list_objects(name, source)]
    chosen = [listed[place * len(listed) // limit] for place in range(limit)] if len(listed) > limit else listed
    return {
        f"{item.source}-{number}": sources[item.source].model_copy(update={"uri": item.uri})
        for number, item in enumerate(chosen, 1)
    }


def _counted(
    tables: Tables, uris: list[str], report: IngestReport, limit: int | None, sources: dict[str, SourceSettings]
) -> Inspection:
    with workbench() as connection:
        for name in ("objects", "interactions", "quarantine", "decisions", "feedback"):
            attach_slice(connection, tables, name, WORKLOAD)
        run(connection, "inspecting/sized")

        def listed(name: str) -> list[dict[str, Any]]:
            return rows(connection, f"inspecting/{name}").to_pylist()

        named = listed("by_name")
        inspection = Inspection(
            uris=uris,
            sampled=False,
            sample_rows=0,
            read=report.total.read,
            totals=listed("totals")[0],
            formats=listed("formats"),
            days=listed("days"),
            workloads=[item for item in named if item["kind"] == "workload"],
            clients=[item for item in named if item["kind"] == "client"],
            models=[item for item in named if item["kind"] == "model"],
            quarantined=listed("quarantined"),
            repeated=listed("repeated")[0],
            feedback=feedback_by_name(connection),
            limited_to=limit,
            failed=listed("failed"),
            clashes=dict(sum(map(Counter, report.clashes.values()), Counter())),
        )
    for name, keys in report.unread_keys.items():
        uri = _uri_of(name, uris)
        inspection.unread[uri] = sum_keys([*inspection.unread.get(uri, []), *keys])
    if any(item["code"] == "unknown_format" for item in inspection.quarantined):
        inspection.proposed = _proposed(sources)
    if not inspection.totals["rows"] and not inspection.feedback:
        raise InspectError(_nothing(inspection, report) + proposal_text(inspection.proposed))
    return inspection


def _proposed(sources: dict[str, SourceSettings]) -> dict[str, dict[str, str]]:
    looks = {
        source.uri: first_look(name, source) for name, source in islice(sources.items(), MOST_NAMED) if source.format == "auto"
    }
    return {uri: look.proposed for uri, look in looks.items() if look.proposed}


def proposal_text(proposed: Mapping[str, dict[str, str]]) -> str:
    """Proposed `fields` as the YAML of a recipe's sources; "" without a proposal."""
    if not proposed:
        return ""
    sources = {f"source-{number}": {"uri": uri, "fields": fields} for number, (uri, fields) in enumerate(proposed.items(), 1)}
    text = yaml.safe_dump({"sources": sources}, sort_keys=False, allow_unicode=True, width=10**9)
    return (
        "\nA mapping in the recipe would read the records of no known format. This is a guess from names and shapes: check "
        f"it.\n\n{text.rstrip()}"
    )


def _nothing(inspection: Inspection, report: IngestReport) -> str:
    where = ", ".join(inspection.uris)
    objects = sum(item["objects"] for item in inspection.formats)
    reasons = [f"{item['first_object']}: {item['problem']}" for item in inspection.failed]
    reasons += [f"{item['first_place']}: {item['code']}: {item['message']}" for item in inspection.quarantined]
    if not reasons:
        return f"{counted(objects, 'object')} under {where} {'holds' if objects == 1 else 'hold'} no record at all"
    if len(reasons) > 1:
        counts = [item["objects"] for item in inspection.failed] + [item["lines"] for item in inspection.quarantined]
        listed = [
            f"\n  {reason}" + (f" (and {count - 1:,} more like it)" if count > 1 else "")
            for reason, count in zip(reasons, counts, strict=True)
        ]
        return f"no record under {where} can be used, for {len(reasons)} reasons:{''.join(listed)}"
    if len(report.failed_objects) == objects:
        which = f"the one object under {where} cannot" if objects == 1 else f"none of the {objects:,} objects under {where} can"
        return f"{which} be read; {reasons[0]}"
    what = "is of a known log format" if inspection.quarantined[0]["code"] == "unknown_format" else "can be used"
    return f"no record under {where} {what}; {reasons[0]}"


def _sample(everything: Tables, into: Tables, share: float) -> Tables:
    for day in sorted(everything.rows_by_day("interactions", WORKLOAD)):
        with workbench() as connection:
            attach_slice(connection, everything, "interactions", WORKLOAD, [day])
            drawn = rows(connection, "inspecting/sample", share=share)
        if len(drawn):
            into.replace("interactions", drawn, workload=WORKLOAD, dt=day)
    with workbench() as connection:
        attach_slice(connection, everything, "feedback", WORKLOAD)
        into.append("feedback", connection.table("feedback").to_arrow_table())
    return into


def _add_sampled(tables: Tables, inspection: Inspection) -> None:
    with workbench() as connection:
        for name in ("interactions", "cleaned_interactions", "decisions"):
            attach_slice(connection, tables, name, WORKLOAD)
        for macro in MACROS:
            run(connection, macro)
        for name in ("decisions", "examples", "pii", "languages", "shapes"):
            setattr(inspection, name, rows(connection, f"inspecting/{name}").to_pylist())
        inspection.sessions = rows(connection, "inspecting/sessions").to_pylist()[0]
        inspection.with_feedback = rows(connection, "inspecting/with_feedback").to_pylist()[0]
        run(connection, "inspecting/drawn", characters=DRAFTED_CHARACTERS)
        run(connection, "curating/clean/messages")
        answers = rows(connection, "inspecting/answers")
    inspection.acceptance = _acceptance(answers)
    by_shape = inspection.acceptance["shapes"]
    total = sum(shape["rows"] for shape in inspection.shapes)
    for shape in inspection.shapes:
        shape["share"] = shape["rows"] / total
        shape["acceptance"] = by_shape.get(shape["shape"])


def _acceptance(answers: pa.Table) -> dict[str, Any]:
    """Acceptance lengths of prompt lookup, over all rows, by workload and by shape (of 20 answers or more)."""
    from resources.inspecting.prompt_lookup import pieces_of, replayed

    exact = np.array(answers["prompt_token_ids"].is_valid()) & np.array(answers["completion_token_ids"].is_valid())
    groups = {"workloads": answers["workload_name"].to_pylist(), "shapes": answers["shape"].to_pylist()}
    result: dict[str, Any] = {
        "rows": len(answers),
        "exact_rows": int(exact.sum()),
        "pieces_rows": int((~exact).sum()),
        "workloads": {},
        "shapes": {},
    }
    mask = pa.array(exact)
    parts = [
        (
            np.flatnonzero(exact),
            _ids(answers["prompt_token_ids"].filter(mask)),
            _ids(answers["completion_token_ids"].filter(mask)),
        ),
        (
            np.flatnonzero(~exact),
            pieces_of(answers["prompt"].filter(pa.array(~exact))),
            pieces_of(answers["answer"].filter(pa.array(~exact))),
        ),
    ]
    for draft in DRAFTS:
        forwards, emitted = np.zeros(len(answers), np.int64), np.zeros(len(answers), np.int64)
        for places, prompts, given in parts:
            counts = replayed(prompts, given, draft)
            forwards[places], emitted[places] = counts.forwards, counts.emitted
        result[f"K{draft}"] = _tau(forwards, emitted)
        for kind, names in groups.items():
            sizes = Counter(names)
            for name in [name for name, size in sizes.most_common() if size >= 20 or kind == "workloads"]:
                member = np.array([each == name for each in names])
                result[kind].setdefault(name, {})[f"K{draft}"] = _tau(forwards[member], emitted[member])
    return result


def _tau(forwards: np.ndarray, emitted: np.ndarray) -> float | None:
    """Tokens emitted per forward pass; None if no answer is longer than a token."""
    return float(emitted.sum() / forwards.sum()) if forwards.sum() else None


def _ids(lists: pa.ChunkedArray) -> RaggedLists:
    whole = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    offsets = np.concatenate([[0], np.cumsum(np.array(whole.value_lengths(), np.int64))]).astype(np.int64)
    return RaggedLists(np.array(whole.flatten(), dtype=np.uint64), offsets)
