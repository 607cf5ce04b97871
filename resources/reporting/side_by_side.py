"""What two releases of a workload answered to the same prompts, from what their runs kept, with the differences marked.

Two sources, in this order: greedy answers to held-out rows that an evaluation asked of a candidate and its champion
(side_by_side.jsonl), and the answers of each release's target that its drafter learnt from (speculator_dataset), which are
sampled. Nothing is generated here. Texts are escaped, and characters that cannot be seen are shown."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

import pyarrow.parquet as pq
from markupsafe import Markup, escape
from tokenizers import Tokenizer

from resources.lake import LakeLayout
from resources.manifests import Input, Manifest, ManifestError, read_manifest
from resources.records import page_environment, visible
from resources.releases import ReleaseError, read_release
from resources.releasing import SIDE_BY_SIDE

LONGEST = 1_500
"""Most characters of a text; of a prompt the last ones."""
GREEDY, SAMPLED = "greedy, held out", "sampled, for the drafter"


@dataclass(frozen=True)
class Pair:
    """One prompt and what each release answered."""

    row_id: str
    turn: int
    how: str
    """greedy or sampled."""
    prompt: str
    logged: str
    """What the log has; "" where it is not kept."""
    before: str
    after: str

    @property
    def same(self) -> bool:
        return self.before == self.after


def answers_side_by_side(lake: LakeLayout, before: Path, after: Path, prompts: int) -> list[Pair]:
    """At most `prompts` pairs, the greedy ones first (those that differ before those that do not); sampled ones in an order
    that has nothing to do with the answers. before, after: directories of two releases. Raises ReleaseError for releases of two
    workloads, for one release twice, and where nothing was kept that both answered."""
    if before == after:
        raise ReleaseError(f"release {before.name} is named twice: name two releases")
    if before.parent != after.parent:
        raise ReleaseError(f"{before.parent.name} and {after.parent.name} are two workloads: name two releases of one")
    greedy = {pair.row_id: pair for pair in _evaluated(lake, before, after)}
    sampled = [pair for pair in _sampled(lake, before, after) if pair.row_id not in greedy]
    pairs = [*sorted(greedy.values(), key=lambda pair: pair.same), *sorted(sampled, key=_drawn)]
    if not pairs:
        raise ReleaseError(
            f"no prompt is known that both {before.name} and {after.name} answered: approve one of them and run the recipe "
            "again, which asks champion and candidate the same rows, or train drafters, which keeps their targets' answers"
        )
    return pairs[:prompts]


def _drawn(pair: Pair) -> bytes:
    """An order that has nothing to do with the answers, and is the same every time."""
    return hashlib.sha256(f"{pair.row_id}/{pair.turn}".encode()).digest()


def _evaluated(lake: LakeLayout, before: Path, after: Path) -> Iterator[Pair]:
    """Pairs of the evaluation in which one of the releases was candidate and the other its champion."""
    for candidate, champion in ((after, before), (before, after)):
        manifest = _manifest(candidate)
        if manifest is None or manifest.config.get("champion") != champion.name:
            continue
        report = next((item for item in manifest.inputs if item.name.endswith("/evaluation_report")), None)
        for line in _lines(lake, report) if report is not None else ():
            row = json.loads(line)
            if "target" in row and "champion" in row:
                answers = row["target"], row["champion"]
                one, other = answers if candidate == before else answers[::-1]
                prompt = "\n\n".join(f"{said['role']}: {said['text']}" for said in row["prompt"])
                yield Pair(row["row_id"], -1, GREEDY, prompt[-LONGEST:], row["logged"][:LONGEST], one, other)


def _lines(lake: LakeLayout, report: Input) -> list[str]:
    home = lake.artefacts("dataset") / report.name / str(report.version)
    lake.mirror.fetch(home)
    path = home / SIDE_BY_SIDE
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _sampled(lake: LakeLayout, before: Path, after: Path) -> Iterator[Pair]:
    """Pairs of prompts that the targets of both releases answered for their drafters."""
    ours, theirs = _answered(lake, before), _answered(lake, after)
    for key in ours.keys() & theirs.keys():
        (prompt, one), (_, other) = ours[key], theirs[key]
        yield Pair(*key, SAMPLED, prompt, "", one, other)


def _answered(lake: LakeLayout, release: Path) -> dict[tuple[str, int], tuple[str, str]]:
    """Prompt and answer by row and turn, of the dataset that a release's drafter learnt from; {} without one."""
    try:
        parts = read_release(release)
    except ReleaseError:
        return {}
    drafter = _manifest(lake.root / parts.speculator.path) if parts.speculator else None
    learnt = next((item for item in drafter.inputs if item.name.endswith("/speculator_dataset")), None) if drafter else None
    target = lake.root / parts.target.path
    home = lake.artefacts("dataset") / learnt.name / str(learnt.version) if learnt else target
    for directory in (target, home):
        lake.mirror.fetch(directory)
    if learnt is None or not (target / "tokenizer.json").exists():
        return {}
    tokenizer, answers = Tokenizer.from_file(str(target / "tokenizer.json")), {}
    columns = ["row_id", "turn", "prompt_token_ids", "answer_token_ids"]
    for file in sorted(home.glob("*.parquet")):
        for row in pq.read_table(file, columns=columns).to_pylist():
            prompt = tokenizer.decode(row["prompt_token_ids"], skip_special_tokens=False)
            answers[row["row_id"], row["turn"]] = prompt[-LONGEST:], tokenizer.decode(row["answer_token_ids"])[:LONGEST]
    return answers


def _manifest(directory: Path) -> Manifest | None:
    try:
        return read_manifest(directory)
    except ManifestError:
        return None


TEMPLATES = Path(__file__).with_name("templates")
WORD = re.compile(r"\s+|\w+|[^\w\s]")


def differences(before: str, after: str) -> tuple[Markup, Markup]:
    """Both texts, with what only the first has in <del> and what only the second has in <ins>."""
    ours, theirs = WORD.findall(visible(before, lines=True)), WORD.findall(visible(after, lines=True))
    left, right = [], []
    for kind, a, b, c, d in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        one, other = escape("".join(ours[a:b])), escape("".join(theirs[c:d]))
        left.append(one if kind == "equal" or not one else Markup("<del>{}</del>").format(one))
        right.append(other if kind == "equal" or not other else Markup("<ins>{}</ins>").format(other))
    return Markup("").join(left), Markup("").join(right)


def pairs_as_html(pairs: Sequence[Pair], before: str, after: str) -> str:
    """A block that stands for itself in a notebook's cell and in a page. before, after: what the releases are called."""
    environment = page_environment(TEMPLATES)
    shown = [(pair, *differences(pair.before, pair.after)) for pair in pairs]
    return environment.get_template("answers.html.j2").render(
        shown=shown, before=before, after=after, same=sum(pair.same for pair in pairs)
    )
