"""Rules that leave a pair out, each counted, and what the card says of the rest."""

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest
from curated_rows import built, curated, row
from feedback_rows import Made, asked, keep, line, said
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interaction_rows import interaction, thumb

from resources.artefacts.registry import Registry
from resources.catalog.build import rebuild
from resources.catalog.catalog import query
from resources.composing.dataset_settings import DatasetSettings
from resources.composing.held_out import held_out_in_training
from resources.composing.preferences import RULES
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.manifests.erased import is_learnt

CALL = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"id": 7}'}}]
ANSWER = "The parcel left on Monday. It arrives on Friday."
REFUSAL = "I'm sorry, but I can't help with that."


def calling(text, arguments='{"id": 7}', name="c1"):
    return {
        **said(text),
        "tool_calls": [{"id": name, "type": "function", "function": {"name": "look", "arguments": arguments}}],
    }


CASES = [
    (ANSWER, ANSWER, "equal_answers"),
    (ANSWER, "The parcel  left on\nMonday. It arrives on Friday. ", "only_white_space"),
    (ANSWER, "The parcel left on Monday.", "only_length"),
    ("The parcel left on Monday", ANSWER, "only_length"),
    (ANSWER, f"Thank you for asking! {ANSWER} Have a nice day.", "only_length"),
    ("It arrives on Friday. The parcel left on Monday.", ANSWER, "only_length"),
    (REFUSAL, ANSWER, "chosen_refuses"),
    (ANSWER, REFUSAL, "rejected_refuses"),
    (ANSWER, "The parcel left on Tuesday. It arrives on Friday.", None),
    ("4", "42", None),
    ("The answer is 3", "The answer is 3.5", None),
    ("The answer is 3", "The answer is 3. Be sure to check it.", "only_length"),
    ("yes", "Yes", None),
    (calling("I look."), "I look.", None),
    (calling("I look."), calling("I look.", '{"id": 8}'), None),
    (calling("I look."), calling("I look.", name="c2"), "equal_answers"),
    (calling("I look."), calling("I look. One moment."), "only_length"),
    ("它在周一离开。它在周五到达。", "它在周一离开。", "only_length"),
]
"""A chosen and a rejected answer, and the rule that leaves the pair out."""


def test_a_pair_that_differs_in_form_only_is_left_out_by_name(tmp_path):
    rows, feedback = [], []
    for n, (chosen, rejected, _) in enumerate(CASES):
        each, told = line(n, f"question {n}", chosen, rejected)
        rows, feedback = rows + each, feedback + told
    made = Made(tmp_path, rows, feedback)
    kept = {int(json.loads(each["prompt"])[0]["content"].split()[1]) for each in made.pairs}
    assert kept == {n for n, (_, _, rule) in enumerate(CASES) if rule is None}
    counts = Counter(rule for _, _, rule in CASES if rule)
    assert made.dropped == counts
    assert all(f"| pairs | {rule} | {count} | {RULES[rule]} |" in made.card for rule, count in counts.items())


LATE = "**Order 4711:** the parcel left on Monday, 12 May. It arrives... on Friday. Ask Ana."
BOLD = "The parcel left on Monday. It arrives on Friday, so wait."
EDITS = [
    (LATE, "**Order 4711:** the parcel left on Mon…", "only_cut"),
    (LATE, "**Order 4711:** the parcel left on Monday, 12 May. It arrives... on Fri... [20 more]", "only_cut"),
    (LATE, "**Order 4711:** the [… 50 characters …] Friday. Ask Ana.", "only_masked"),
    (LATE, LATE.replace("4711", "****").replace("12", "**"), "only_masked"),
    (LATE, LATE.replace("4711", "X").replace("12", "X"), "only_masked"),
    (LATE, LATE.replace("Ana", "<PERSON>"), "only_masked"),
    ("Write to <EMAIL_1> today.", "Write to <EMAIL> today.", "only_masked"),
    (LATE, "[earlier answer removed]", "only_masked"),
    ("Write to us today.", "Write to <EMAIL_1> today.", None),  # the user named an address, and cleaning hides it
    (LATE, "**Order 4711:** it arrives... on Saturday.", None),
    (LATE, "**Order 4711:** It arrives... on Friday.", None),  # a sentence is deleted, and the answer's own marks stay
    (LATE, LATE.replace("12", "13"), None),
    (LATE, f"Dear customer... {BOLD}", None),
    (BOLD, BOLD.replace("Monday", "**Monday**"), None),
    ("Call `f(x)` of `a[i]` <b>now</b>.", "Call `f(y)` of `a[j]` <i>now</i>.", None),
    ("- one\n- two", "* one\n* two", None),
    ("It is **42 apples**, since 40 + 2 are 42.", "It is **42**", None),
]
"""An answer, what the next request repeats of it, and the rule that leaves the pair out."""


def edit(number, question, answer, repeated):
    """The two rows of a session that repeats another text than its first answer."""
    history = [asked(question), said(repeated), asked("more")]
    about = {"session_id": f"e{number}"}
    return [
        interaction(f"{number}a", question, answer, **about),
        interaction(f"{number}b", history, "fine", minutes=1, **about),
    ]


def test_what_a_client_cuts_or_masks_is_no_edit_and_what_a_person_changes_is(tmp_path):
    rows = [row for n, (answer, repeated, _) in enumerate(EDITS) for row in edit(n, f"question {n}", answer, repeated)]
    made = Made(tmp_path, rows)
    assert made.texts == sorted(("edited", repeated, answer) for answer, repeated, rule in EDITS if rule is None)
    assert made.dropped == Counter(rule for *_, rule in EDITS if rule)


def test_one_text_for_old_answers_to_three_prompts_is_a_placeholder_unless_the_log_answers_with_it(tmp_path):
    three = [("who?", "Old answer."), ("when?", " old  Answer."), ("where?", "Old answer.")]
    two = [("why?", "Ask us."), ("how?", "Ask us."), ("How? ", "Ask us.")]  # one question, asked twice
    label = [(f"good {n}?", "negative") for n in range(3)]
    edits = [*three, *two, *label]
    rows = [row for n, (question, text) in enumerate(edits) for row in edit(n, question, f"positive, case {n}", text)]
    labelled = [interaction(f"l{n}", f"bad {n}?", "Negative") for n in range(3)]
    made = Made(tmp_path / "labels", [dict(row) for row in rows] + labelled)
    assert Counter(text for _, text, _ in made.texts) == {"Ask us.": 3, "negative": 3} and made.dropped == {"placeholder": 3}
    assert f"| pairs | placeholder | 3 | {RULES['placeholder']} |" in made.card
    assert Made(tmp_path / "no_labels", rows + labelled[:2]).dropped == {"placeholder": 6}


def test_answers_to_prompts_that_are_rendered_differently_are_no_pair(tmp_path):
    rows, feedback = line(0, "another", "one", "two")
    for n, other in enumerate(("when did it come?", "When does it come?", "when does it come?"), start=1):
        each, told = line(n, "when does it come?", "on Monday", "on Friday", other)
        rows, feedback = rows + each, feedback + told
    rows[-1]["request"] = '{"reasoning_effort": "high"}'
    made = Made(tmp_path, rows, feedback)
    assert made.dropped == {"prompts_differ": 3} and [each["chosen_id"] for each in made.pairs] == ["i0c"]


def test_people_who_write_a_prompt_differently_are_counted_and_those_who_write_it_alike_are_paired(tmp_path):
    rows = [interaction(n, prompt, f"answer {n}") for n, prompt in enumerate(("Hello", "Hello", "hello "))]
    made = Made(tmp_path, rows, [thumb(value, interaction_id=f"i{n}") for n, value in enumerate((1, -1, -1))])
    assert made.texts == [("rated", "answer 0", "answer 1")] and made.dropped == {"prompts_differ": 1}


def test_lines_are_compared_with_themselves_only(tmp_path):
    first, feedback = line(1, "q", "first chosen", "first rejected")
    second, more = line(2, "q", "second chosen", "second rejected")
    made = Made(tmp_path, first + second, feedback + more)
    third, once_more = line(3, "q", "third chosen", "second rejected")
    again, twice = line(4, "q", "first chosen", "first rejected")
    assert made.texts == [("ranked", "first chosen", "first rejected"), ("ranked", "second chosen", "second rejected")]
    made = Made(tmp_path / "more", first + second + third + again, feedback + more + once_more + twice)
    assert [each[1:] for each in made.texts] == [
        ("first chosen", "first rejected"),
        ("second chosen", "second rejected"),
        ("third chosen", "second rejected"),
    ]
    assert {each["chosen_id"]: each["weight"] for each in made.pairs} == {"i4c": 1.5, "i2c": 0.75, "i3c": 0.75}  # lines


def test_a_branch_of_a_tree_is_no_regenerated_answer(tmp_path):
    tree = {"session_id": "tree", "source_format": "oasst"}
    rows = [
        interaction(1, "q", "leaf", **tree),
        interaction(2, "q", "branch", **tree),
        interaction(3, [{"role": "user", "content": "q"}, said("branch"), {"role": "user", "content": "r"}], "end", **tree),
    ]
    more, feedback = line(2, "another", "one", "two")
    assert [each[0] for each in Made(tmp_path, rows + more, feedback).texts] == ["ranked"]


def test_ranks_of_a_tree_keep_their_distance(tmp_path):
    rows = [interaction(n, "q", f"answer {n}", session_id="tree", source_format="oasst", source_row=4) for n in range(4)]
    about = {"name": "preference", "source": "rank"}
    made = Made(tmp_path, rows, [thumb(1 - 2 * n / 3, interaction_id=f"i{n}", **about) for n in range(4)])
    assert {each["rejected_id"]: each["margin"] for each in made.pairs} == pytest.approx({"i1": 1 / 3, "i2": 2 / 3, "i3": 1})
    assert {(each["reason"], each["chosen_id"]) for each in made.pairs} == {("ranked", "i0")} and not made.answers


def test_ranks_of_half_the_range_are_half_as_far_apart(tmp_path):
    rows = [interaction(n, "q", f"answer {n}", session_id="tree", source_format="oasst", source_row=4) for n in range(3)]
    about = {"name": "preference", "source": "rank"}
    made = Made(tmp_path, rows, [thumb(1 - n / 2, interaction_id=f"i{n}", **about) for n in range(3)])
    assert {each["rejected_id"]: each["margin"] for each in made.pairs} == {"i1": 0.25, "i2": 0.5}


def test_stars_are_scaled_by_their_own_range(tmp_path):
    rows = [interaction(n, "q", f"answer {n}") for n in range(3)]
    made = Made(tmp_path, rows, [thumb(value, interaction_id=f"i{n}", name="stars") for n, value in enumerate((5, 4, 1))])
    assert {each["rejected_id"]: each["margin"] for each in made.pairs} == {"i1": 0.25, "i2": 1}


def test_the_card_warns_where_all_verdicts_are_of_one_kind(tmp_path):
    rows = [interaction(n, f"q {n}", f"answer {n}") for n in range(3)]
    made = Made(tmp_path, rows, [thumb(-1, interaction_id=f"i{n}") for n in range(3)])
    assert made.counts["notes"] == [
        "all 3 unpaired training rows are answers that were not wanted: a loss on single answers needs both kinds",
        "there is no training pair: only losses on single answers can learn from this dataset",
    ]
    assert all(f"**Note:** {note}." in made.card for note in made.counts["notes"])


@pytest.mark.parametrize(
    ("long_wins", "note"), [(20, "the longer answer is chosen in 83% of 24"), (18, None), (4, "the shorter answer")]
)
def test_the_card_warns_where_length_decides(tmp_path, long_wins, note):
    rows, feedback = [], []
    for n in range(24):
        long, short = f"a long answer to question {n}", f"no {n}"
        each, told = line(n, f"q {n}", *((long, short) if n < long_wins else (short, long)))
        rows, feedback = rows + each, feedback + told
    notes = Made(tmp_path, rows, feedback).counts["notes"]
    assert [each[: len(note or "")] for each in notes] == ([note] if note else [])


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from("abcd"), min_size=1, max_size=4), st.lists(st.sampled_from("abcd"), min_size=1, max_size=4)
        ),
        min_size=12,
        max_size=12,
    )
)
def test_sentences_added_or_moved_are_length_only_as_sets_say(tmp_path_factory, drawn):
    rows, feedback = line(99, "another", "one", "two")
    wanted = {}
    for n, (left, right) in enumerate(drawn):
        texts = [" ".join(f"Sentence {each} is here." for each in side) for side in (left, right)]
        each, told = line(n, f"q {n}", *texts)
        rows, feedback = rows + each, feedback + told
        contained = set(left) <= set(right) or set(right) <= set(left)
        wanted[f"q {n}"] = "equal_answers" if left == right else "only_length" if contained else None
    made = Made(tmp_path_factory.mktemp("lake"), rows, feedback)
    kept = {json.loads(each["prompt"])[0]["content"] for each in made.pairs} - {"another"}
    assert kept == {prompt for prompt, rule in wanted.items() if rule is None}
    counts = [*wanted.values()]
    assert made.dropped == {rule: counts.count(rule) for rule in {*counts} - {None}}


SOURCES = ("model_ops/jobs/job.py",)
SPLIT = DatasetSettings(test_share=0.3, validation_share=0.2)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Pairs of two users' answers, so that most pairs have a held-out session, beside the sft_dataset of the same sessions."""
    folder = tmp_path_factory.mktemp("preference")
    lake = LakeLayout.open(folder / "lake")
    rows = [
        interaction(
            f"{side}{n}",
            f"question {n}",
            f"What I can say of {n}\nis {side}.",
            session_id=f"{side}{n}",
            user_hash=f"u{side}{n}",
        )
        for n in range(30)
        for side in ("good", "bad")
    ]
    thumbs = [thumb(1 if side == "good" else -1, interaction_id=f"i{side}{n}") for n in range(30) for side in ("good", "bad")]
    keep(Tables(lake), rows, thumbs)
    registry = Registry(lake, "tutor")
    like_logged = [
        row(
            each["interaction_id"],
            f"asked {each['interaction_id']}",
            "x",
            **{key: each[key] for key in ("session_id", "user_hash")},
        )
        | {"interaction_id": each["interaction_id"]}
        for each in rows
    ]
    inputs = {}
    for name, seed in (("sft_dataset", 0), ("preference_dataset", 0), ("other_preferences", 5)):
        draft = registry.draft("dataset", name, name, SOURCES, {"seed": seed}, [])
        if name == "sft_dataset":
            built(curated(folder / "curated.parquet", like_logged), draft.directory, SPLIT)
        else:
            made = Made(folder / name, tables=Tables(lake), splits=SPLIT.model_copy(update={"seed": seed}))
            for file in made.folder.iterdir():
                file.rename(draft.directory / file.name)
        inputs[name] = registry.finish(draft, {"dropped": {"pairs": {"placeholder": 2, "only_cut": 1}}})
    rebuild(lake)
    return lake, inputs


def model_of(lake, inputs, *names):
    registry = Registry(lake, "tutor")
    draft = registry.draft("model", "preference_model", "preference", SOURCES, {}, [inputs[name].as_input() for name in names])
    (draft.directory / "weights").write_text(" ".join(names))
    return registry.finish(draft, {})


def test_no_row_that_a_dataset_holds_out_is_learnt_and_one_with_other_splits_is_found(lake):
    place, inputs = lake
    assert held_out_in_training(place, model_of(place, inputs, "sft_dataset", "preference_dataset")) == []
    leaks = held_out_in_training(place, model_of(place, inputs, "sft_dataset", "other_preferences"))
    learnt = {(leak.learnt.partition("@")[0], leak.held.partition("@")[0]) for leak in leaks}
    assert ("tutor/other_preferences", "tutor/sft_dataset") in learnt
    assert ("tutor/sft_dataset", "tutor/other_preferences") in learnt
    directory = place.artefacts("dataset") / "tutor" / "other_preferences" / inputs["other_preferences"].version
    pairs, answers = (pq.read_table(directory / f"{name}train.parquet").num_rows for name in ("", "unpaired_"))
    found = sum(leak.rows for leak in leaks if leak.learnt.startswith("tutor/other") and leak.held.startswith("tutor/sft"))
    assert 0 < pairs < found <= pairs + answers, "single answers are searched too"


def test_files_of_training_rows_are_learnt():
    files = [f"{prefix}{split}.parquet" for prefix in ("", "unpaired_") for split in ("train", "validation", "test")]
    assert [name for name in files if is_learnt(name, files)] == ["train.parquet", "unpaired_train.parquet"]


def test_both_kinds_of_rows_are_views_with_splits_and_comments(lake):
    place, _ = lake
    for relation, rows in (("tutor_preference_dataset", 30), ("tutor_preference_dataset_unpaired", 60)):
        found = query(place, f"select split, count(*) as rows from {relation} group by split").to_pylist()
        assert {each["split"] for each in found} == {"train", "validation", "test"}
        assert sum(each["rows"] for each in found) == rows
        told = query(place, f"select column_name, comment from relation_columns where relation = '{relation}'").to_pydict()
        assert all(told["comment"]) and {"confidence", "weight", "reason"} <= set(told["column_name"])
    answers = query(place, "select count(*) as rows from tutor_preference_dataset_unpaired where split = 'train'")
    lines = query(
        place,
        "select count(*) as rows from log_lines_in('tutor/preference_dataset') where row_id like 'answer:%' and split = 'train'",
    )
    assert lines.to_pylist() == answers.to_pylist()


@pytest.fixture
def show(lake, cli, tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        json.dumps({"workload": "tutor", "base_model": "tiny", "sources": {"gateway": {"uri": "gateway"}}})
    )
    return lambda *more, check=0: cli(
        "show", tmp_path / "recipe.yaml", "--lake", lake[0].root, "--preference", *more, check=check
    )


def test_pairs_are_shown_with_their_first_difference_in_80_columns(show, lake):
    place, _ = lake
    [row_id] = query(place, "select min(row_id) as row from tutor_preference_dataset where split = 'train'")["row"].to_pylist()
    lines = show("--row", row_id).stdout.splitlines()
    assert lines[0] == f"{row_id}  rated  confidence 0.8  margin 1  weight 1"
    assert lines[1].startswith("prompt    user: question ")
    assert lines[2].startswith("chosen    What I can say of ") and lines[3] == f"{'':10}is »good."
    assert lines[4].startswith("rejected  What I can say of ") and lines[5] == f"{'':10}is »bad."
    shown = show("--count", "50").stdout
    assert max(map(len, shown.splitlines())) <= 80 and shown.count("»") >= 2 * 7 and "  thumb  confidence 0.8" in shown
    assert "with a verdict in train; » marks the first difference" in shown
    assert "pairs left out: placeholder 2, only_cut 1; README.md of the dataset says why" in shown
    assert "has no row pair:0" in show("--row", "pair:0", check=2).stderr
    assert "leave --preference out" in show("--html", "x.html", check=2).stderr


def test_a_lake_without_preferences_is_a_sentence(cli, tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        json.dumps({"workload": "helper", "base_model": "tiny", "sources": {"gateway": {"uri": "gateway"}}})
    )
    LakeLayout.open(tmp_path / "lake")
    done = cli("show", tmp_path / "recipe.yaml", "--lake", tmp_path / "lake", "--preference", check=2)
    assert "give the recipe `datasets: {preference: {}}`" in done.stderr
