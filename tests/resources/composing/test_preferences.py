"""The preference dataset: where pairs and verdicts come from, votes and weights, splits, and evaluation items."""

import hashlib
import json
import random
from collections import defaultdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from curated_rows import built, curated, row
from feedback_rows import ALL, Made, asked, at, decide, keep, line, said
from interaction_rows import days_of, interaction, store, thumb
from loopback import loopback

from resources.composing.dataset_settings import DatasetError, DatasetSettings, SourceConfidence
from resources.composing.eval_suite import EvalSettings, build_eval_suite
from resources.composing.preferences import TaughtAnswers
from resources.composing.teachers.teacher_answers import PREFERENCES
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.judge_endpoint import JudgeSettings
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables

CONTINUED = [
    interaction(3, "again", "first try", session_id="c"),
    interaction(4, "again", "second try", session_id="c", minutes=1),
    interaction(5, [asked("again"), said("second try"), asked("more")], "and so on", session_id="c", minutes=2),
    interaction(6, "write", "my draft of it", session_id="d"),
    interaction(7, [asked("write"), said("what a person made of it"), asked("more")], "fine", session_id="d", minutes=1),
    interaction(8, "cut", "a long answer that a client cuts", session_id="e"),
    interaction(9, [asked("cut"), said("long answer"), asked("more")], "fine too", session_id="e", minutes=1),
]


def test_pairs_of_cleaned_rows_by_ratings_regenerations_edits_and_lines(tables, tmp_path):
    lines, compared = line(11, "compare", "the left one", "the right one")
    rows = [
        interaction(1, "rate me", "the good answer", session_id="a", reasoning="it is good"),
        interaction(2, "rate me", "the bad answer", session_id="b"),
        *(dict(each) for each in CONTINUED),
        interaction(10, "alone", "rated and without another answer", session_id="f"),
        *lines,
    ]
    store(tables, "interactions", rows)
    thumbs = [thumb(1, interaction_id="i1"), thumb(-1, interaction_id="i2"), thumb(-1, interaction_id="i10")]
    store(tables, "feedback", [*thumbs, *compared])
    clean(tables, "tutor", days_of(rows), CurationSettings())
    made = Made(tmp_path, tables=tables)
    assert made.texts == [
        ("edited", "what a person made of it", "my draft of it"),
        ("ranked", "the left one", "the right one"),
        ("rated", "the good answer", "the bad answer"),
        ("regenerated", "second try", "first try"),
    ]
    of = {each["reason"]: each for each in made.pairs}
    assert made.dropped == {"only_length": 1}  # the client's part of an answer
    assert {reason: each["confidence"] for reason, each in of.items()} == {
        reason: getattr(SourceConfidence(), reason) for reason in of
    }
    assert (of["rated"]["margin"], of["ranked"]["margin"], of["edited"]["margin"]) == (1, 1, None)
    assert json.loads(of["rated"]["chosen"]) == [{**said("the good answer"), "reasoning_content": "it is good"}]
    assert json.loads(of["rated"]["prompt"]) == [asked("rate me")] and of["rated"]["interaction_ids"] == ["i1", "i2"]
    assert (of["edited"]["chosen_id"], of["edited"]["interaction_ids"]) == (None, ["i6"])
    assert {(each["reason"], json.loads(each["answer"])[0]["content"], each["desirable"]) for each in made.answers} == {
        ("thumb", "the good answer", True),
        ("thumb", "the bad answer", False),
        ("thumb", "rated and without another answer", False),
    }


def test_nothing_to_learn_from_is_an_error_with_what_was_left_out(tmp_path):
    rows, feedback = line(1, "q", "the same", "the same")
    with pytest.raises(DatasetError, match=r"for training: all that was found is held out or left out \(equal_answers 1\)"):
        Made(tmp_path, rows, feedback)
    with pytest.raises(DatasetError, match="nobody rated, regenerated or edited an answer"):
        Made(tmp_path / "other", [interaction(1, "q", "a")])


def random_votes(seed):
    """Answers of a few users to a few prompts, with thumbs at distinct times."""
    draw = random.Random(seed)
    rows, thumbs = [], []
    for n in range(draw.randint(8, 40)):
        user, prompt, text = draw.choice("uvwx"), draw.choice("pq"), draw.choice(("one", "two", "three", "four"))
        rows.append(interaction(n, prompt, text, session_id=f"s{n}", user_hash=user, minutes=n))
        if draw.random() < 0.8:
            thumbs.append(thumb(draw.choice((-1, 1)), interaction_id=f"i{n}", ts=at(draw.randrange(60)).replace(microsecond=n)))
    return rows, thumbs


def votes_by_hand(rows, thumbs):
    """(prompt, rejected text) -> (texts that may be chosen, votes), and (prompt, text) -> (mean, votes) of single verdicts."""
    given = {each["interaction_id"]: each for each in thumbs}
    voted = [
        (row["messages"], json.loads(row["completion"])["content"], row["user_hash"], given[row["interaction_id"]])
        for row in rows
        if row["interaction_id"] in given
    ]
    last = {}
    for prompt, text, user, each in sorted(voted, key=lambda vote: vote[3]["ts"]):
        last[prompt, text, user] = each
    grades = defaultdict(list)
    for (prompt, text, _), each in last.items():
        grades[prompt, text].append(each["value"])
    mean = {key: sum(values) / len(values) for key, values in grades.items()}
    unrated = {(row["messages"], json.loads(row["completion"])["content"]) for row in rows} - mean.keys()
    pairs, chosen_of = {}, {}
    for prompt, text in mean:
        others = {
            other: mean.get((prompt, other), 0)
            for other in ("one", "two", "three", "four")
            if other != text and ((prompt, other) in mean or (prompt, other) in unrated)
        }
        if not others:
            continue
        top = max(others.values())
        best = {other for other, value in others.items() if value == top}
        graded = {other for other in best if (prompt, other) in mean}
        best = graded or best
        if top - mean[prompt, text] >= 0.5 and (graded or mean[prompt, text] < 0):
            chosen_of[prompt, text] = best
    # of each user the last vote for a pair of the prompt counts
    latest = {}
    for (prompt, text, user), each in last.items():
        if (prompt, text) in chosen_of and ((prompt, user) not in latest or each["ts"] > latest[prompt, user][0]):
            latest[prompt, user] = (each["ts"], text)
    for (prompt, _), (_, text) in latest.items():
        pairs[prompt, text] = (chosen_of[prompt, text], pairs.get((prompt, text), (None, 0))[1] + 1)
    single, newest = defaultdict(list), {}
    for (prompt, text, user), each in last.items():
        if (prompt, user) not in newest or each["ts"] > newest[prompt, user][0]:
            newest[prompt, user] = (each["ts"], text, each["value"])
    for (prompt, _), (_, text, value) in newest.items():
        single[prompt, text].append(value)
    return pairs, {key: (sum(values) / len(values), len(values)) for key, values in single.items()}


@pytest.mark.parametrize("seed", range(6))
def test_votes_count_once_for_each_user_and_prompt_as_by_hand(tmp_path, seed):
    rows, thumbs = random_votes(seed)
    pairs, single = votes_by_hand(rows, thumbs)
    made = Made(tmp_path, rows, thumbs)
    found = {(each["prompt"], json.loads(each["rejected"])[0]["content"]): each for each in made.pairs}
    assert found.keys() == pairs.keys()
    scale = sum(votes for _, votes in pairs.values()) / max(1, len(pairs))
    for key, (chosen, votes) in pairs.items():
        assert json.loads(found[key]["chosen"])[0]["content"] in chosen
        assert found[key]["weight"] == pytest.approx(votes / scale), "votes of the pair, 1 on average"
    verdicts = {(each["prompt"], json.loads(each["answer"])[0]["content"]): each for each in made.answers}
    wanted = {key: each for key, each in single.items() if each[0]}
    assert {key: each["value"] for key, each in verdicts.items()} == pytest.approx(
        {key: mean for key, (mean, _) in wanted.items()}
    )
    mean = sum(votes for _, votes in wanted.values()) / max(1, len(wanted))
    assert all(verdicts[key]["weight"] == pytest.approx(votes / mean) for key, (_, votes) in wanted.items())
    assert made.counts["dropped"]["verdicts"].get("neutral", 0) == len(single) - len(wanted)


def test_votes_weigh_by_the_share_of_sessions_that_was_kept(tmp_path):
    shares = {"a": 0.5, "b": 0.05, "c": None, "d": 7}  # 7 is no share
    rows = [interaction("good", "q", "good")]
    for name, share in shares.items():
        params = None if share is None else json.dumps({"kept_share": share})
        rows.append(interaction(name, "q", f"bad {name}", user_hash=name, params=params))
    thumbs = [thumb(-1, interaction_id=f"i{name}") for name in shares]
    weights = {name: min(10, 1 / share) if share and share <= 1 else 1 for name, share in shares.items()}
    mean = sum(weights.values()) / len(weights)
    made = Made(tmp_path, rows, thumbs, propensity_clip=10)
    assert {each["rejected_id"][1:]: each["weight"] for each in made.pairs} == pytest.approx(
        {name: weight / mean for name, weight in weights.items()}
    )
    assert {each["interaction_ids"][0][1:]: each["weight"] for each in made.answers} == pytest.approx(
        {name: weight / mean for name, weight in weights.items()}
    )
    assert {each["weight"] for each in Made(tmp_path, tables=Tables(LakeLayout.open(tmp_path / "lake"))).pairs} == {1}


def test_how_a_session_ends_is_said_of_each_answer_and_shared_by_them(tmp_path):
    rows, feedback = [], []
    for name, reward in (("won", 1), ("lost", 0)):
        messages = []
        for turn in range(3):
            messages = [*messages, asked(f"turn {turn}")]
            text = f"{name} {turn}" if turn else "hello"  # the first answer is the same
            rows.append(interaction(f"{name}{turn}", messages, text, session_id=name, minutes=turn))
            messages = [*messages, said(text)]
        feedback.append(thumb(reward, session_id=name, name="reward", source="outcome"))
    rows += [interaction("rude", [asked("turn 0"), said("hello"), asked("turn 1")], "rude", session_id="x")]
    made = Made(tmp_path, rows, [*feedback, thumb(-1, interaction_id="irude")])
    of = {json.loads(each["answer"])[0]["content"]: each for each in made.answers}
    assert {text: (each["reason"], each["value"]) for text, each in of.items()} == {
        "won 1": ("outcome", 1),
        "won 2": ("outcome", 1),
        "lost 1": ("outcome", -1),
        "lost 2": ("outcome", -1),
        "rude": ("thumb", -1),
    }
    assert made.counts["dropped"]["verdicts"] == {"neutral": 1}  # `hello` was said in a lost and in a won session
    assert of["won 1"]["weight"] == pytest.approx(of["rude"]["weight"] / 3)
    assert ("outcome", "won 1", "lost 1") in made.texts


def test_a_pair_of_two_sessions_is_in_the_more_protected_split_of_their_users(tables, tmp_path):
    rows, thumbs = [], []
    for n in range(40):
        for side, value in (("g", 1), ("b", -1)):
            # two sessions of each user have the same text: both count
            for copy in "xy" if n % 2 else "x":
                rows.append(
                    interaction(
                        f"{side}{n}{copy}",
                        f"question {n}",
                        f"{side} answer",
                        session_id=f"{side}{n}{copy}",
                        user_hash=f"{side}u{n}{copy}",
                    )
                )
                thumbs.append(thumb(value, interaction_id=f"i{side}{n}{copy}"))
    spec = DatasetSettings(test_share=0.3, validation_share=0.1)
    made = Made(tmp_path, rows, thumbs, splits=spec)
    _, sft = built(
        curated(
            tmp_path / "c.parquet",
            [
                row(
                    each["interaction_id"],
                    f"about {each['interaction_id']}",
                    "x",
                    **{name: each[name] for name in ("session_id", "user_hash")},
                )
                for each in rows
            ],
        ),
        tmp_path / "d",
        spec,
    )
    splits = {each["session_id"]: each["split"] for each in sft}
    order = ("test", "validation", "train")
    assert len(made.pairs) == 40 and {each["split"] for each in made.pairs} == set(order)
    for each in made.pairs:
        number = json.loads(each["prompt"])[0]["content"].split()[1]
        sessions = [f"{side}{number}{copy}" for side in "gb" for copy in ("xy" if int(number) % 2 else "x")]
        assert each["split"] == min((splits[name] for name in sessions), key=order.index)
        assert {splits[name[1:]] for name in each["interaction_ids"]} == {each["split"]}, "no id of a less protected session"


def test_the_users_that_strata_hold_out_are_held_out_here(tmp_path):
    rows = [
        interaction(n, f"q {n}", text, session_id=f"s{n}{text}", user_hash=f"u{n}") for n in range(6) for text in ("a", "b")
    ]
    rows = [each | {"interaction_id": f"i{place}"} for place, each in enumerate(rows)]
    thumbs = [thumb(1 if place % 2 else -1, interaction_id=f"i{place}") for place in range(12)]
    tiny = ALL.model_copy(update={"test_share": 1e-6, "validation_share": 1e-6})
    lent = {"test": [hashlib.md5(b"0:u1").hexdigest()]}
    made = Made(tmp_path, rows, thumbs, splits=tiny, lent=lent)
    assert {each["split"] for each in made.pairs if each["prompt"] == json.dumps([asked("q 1")])} == {"test"}
    assert made.counts["rows"] == {"train": 5, "validation": 0, "test": 1}
    assert made.counts["unpaired"] == {"train": 5, "validation": 0, "test": 1}  # of each user the last vote


ITEM = "which of the seven rivers of the old kingdom carries the most water to the northern sea"


def test_evaluation_items_are_in_no_pair_and_in_no_verdict(tables, tmp_path):
    (tmp_path / "evals.jsonl").write_text(json.dumps({"question": ITEM, "answer": "4"}))
    build_eval_suite({"e": EvalSettings(uri=str(tmp_path / "evals.jsonl"))}, tmp_path / "suite")
    rows = [
        interaction(1, ITEM, "the first", session_id="a"),
        interaction(2, ITEM, "the second", session_id="b"),
        interaction(3, "fine", "good", session_id="f"),
        interaction(4, "fine", "bad", session_id="g"),
        interaction(6, "write", "my draft of it", session_id="d"),
        interaction(7, [asked("write"), said(f"tell me {ITEM}"), asked("more")], "fine", session_id="d", minutes=1),
    ]
    taught = teacher_of(
        tmp_path,
        [("right", f"wrong, but {ITEM}"), (f"right: {ITEM}", "wrong"), ("right", "wrong")],
        ["logged"] * 3,
        ["taught"] * 3,
    )
    thumbs = [thumb(1, interaction_id="i1"), thumb(-1, interaction_id="i2"), thumb(-1, interaction_id="i4")]
    keep(tables, rows, thumbs)
    # curation's first rule names a thumb down, so its decision does not say that the row holds an item
    decide(tables, i1="contaminated", i2="thumbs_down")
    made = Made(tmp_path, tables=tables, eval_items=tmp_path / "suite" / "items.parquet", taught=taught)
    assert made.texts == [("graded", "right", "wrong"), ("rated", "good", "bad")]
    assert made.dropped == {"contaminated": 3}
    assert [json.loads(each["answer"])[0]["content"] for each in made.answers] == ["bad"]


def teacher_of(tmp_path, pairs, logged, taught):
    """A teacher's directory with these (kept, rejected) pairs and kept answers, beside logged ones."""
    (tmp_path / "answers").mkdir()
    (tmp_path / "sft").mkdir()
    about = {"interaction_ids": ["i9"], "source": "gateway", "session_id": "t", "tools": None, "request": None}
    learnt = [{**asked("q"), "weight": 0}, {**said("before"), "weight": 1, "learnt_reasoning": "so"}, asked("r")]
    pq.write_table(
        pa.Table.from_pylist(
            [
                {
                    **about,
                    "row_id": f"t{n}",
                    "prompt": json.dumps(learnt),
                    "chosen": json.dumps([said(kept)]),
                    "rejected": json.dumps([said(rejected)]),
                    "chosen_score": 9.0,
                    "rejected_score": 4.5,
                }
                for n, (kept, rejected) in enumerate(pairs)
            ],
            schema=PREFERENCES,
        ),
        tmp_path / "answers" / "preferences.parquet",
    )
    for folder, texts in (("sft", logged), ("answers", taught)):
        found = [
            {
                **about,
                "row_id": f"t{n}",
                "origin": "interaction",
                "messages": json.dumps([*learnt, {**said(text), "weight": 1}]),
            }
            for n, text in enumerate(texts)
        ]
        pq.write_table(pa.Table.from_pylist(found), tmp_path / folder / "train.parquet")
    return TaughtAnswers(tmp_path / "answers", tmp_path / "sft", "graded", 9)


def test_a_teacher_gives_pairs_of_its_own_answers_and_where_it_is_asked_for_of_the_logged_one(tmp_path):
    rows, feedback = line(1, "q", "left", "right")
    taught = teacher_of(
        tmp_path, [("right one", "wrong one")], ["the log's", "as the teacher"], ["the teacher's", "as the teacher"]
    )
    made = Made(tmp_path, rows, feedback, taught=taught)
    assert made.texts == [("graded", "right one", "wrong one"), ("ranked", "left", "right")]
    [graded] = [each for each in made.pairs if each["origin"] == "teacher"]
    assert graded["margin"] == 0.5 and graded["synthetic"] and graded["workload"] == "tutor"
    assert json.loads(graded["prompt"]) == [asked("q"), said("before"), asked("r")]  # nothing that only fine-tuning reads
    made = Made(
        tmp_path, tables=Tables(LakeLayout.open(tmp_path / "lake")), taught=taught, confidence={"strong": 0.6, "graded": 0}
    )
    assert made.texts == [("ranked", "left", "right"), ("strong", "the teacher's", "the log's")]


def test_the_best_and_the_worst_of_judged_answers_are_a_pair(tables, tmp_path):
    judge = JudgeSettings(base_url="http://localhost:1", model="judge")
    rows = [interaction(n, "q", f"answer {n}", minutes=n) for n in range(4)] + [interaction(9, "p", "alone")]
    keep(tables, rows, [thumb(-1, interaction_id="i9")])
    scored = [
        dict.fromkeys(SCHEMAS["judgements"].names)
        | {name: rows[n][name] for name in ("workload", "dt", "interaction_id", "content_sha256")}
        | {"name": "quality", "score": score, "model": "judge", "prompt_sha256": judge.prompt_sha256, "ts": at(n)}
        for n, score in enumerate((6.0, 9.0, 2.0, 8.0))
    ]
    store(tables, "judgements", scored)
    made = Made(tmp_path, tables=tables, curation=CurationSettings(judge=judge))
    assert made.texts == [("graded", "answer 1", "answer 2")] and made.pairs[0]["margin"] == pytest.approx(7 / 9)
    decide(tables, i1="low_quality")
    made = Made(tmp_path, tables=tables, curation=CurationSettings(judge=judge))
    assert made.texts == [] and made.dropped == {"chosen_low_quality": 1}


def test_a_judge_reads_discontent_in_the_next_message_and_is_asked_once(tmp_path):
    rows = [
        interaction(1, "q", "wrong thing", session_id="a"),
        interaction(2, [asked("q"), said("wrong thing"), asked("no, that is wrong")], "sorry", session_id="a", minutes=1),
        interaction(3, "p", "nice thing", session_id="b"),
        interaction(4, [asked("p"), said("nice thing"), asked("thank you")], "welcome", session_id="b", minutes=1),
        interaction(5, "r", "thumb wins", session_id="c"),
        interaction(6, [asked("r"), said("thumb wins"), asked("that is wrong")], "oh", session_id="c", minutes=1),
    ]
    seen = []

    def judge(body, number):
        shown = body["messages"][1]["content"]
        seen.append(shown)
        reply = json.dumps({"quality": 1 if "that is wrong" in shown else 9, "difficulty": 1})
        return 200, {"choices": [{"message": {"content": reply}, "finish_reason": "stop"}]}

    with loopback(judge) as (address, _):
        curation = CurationSettings(judge=JudgeSettings(base_url=f"{address}/v1", model="j"))
        kept = tmp_path / "kept.jsonl"
        made = Made(tmp_path, rows, [thumb(1, interaction_id="i5")], curation=curation, dissatisfaction=3, ratings=kept)
        again = Made(
            tmp_path, tables=Tables(LakeLayout.open(tmp_path / "lake")), curation=curation, dissatisfaction=3, ratings=kept
        )
    assert {(each["reason"], json.loads(each["answer"])[0]["content"], each["desirable"]) for each in made.answers} == {
        ("dissatisfied", "wrong thing", False),
        ("thumb", "thumb wins", True),
    }
    assert {each["value"] for each in made.answers} == {-1, 1} and again.answers == made.answers
    assert len(seen) == 3 and all("<answer>" in shown for shown in seen)


def test_a_user_who_asks_again_several_times_gives_one_pair(tmp_path):
    rows = [
        interaction(1, "again", "first", session_id="c"),
        interaction(2, "again", "second", session_id="c", minutes=1),
        interaction(3, "again", "third", session_id="c", minutes=2),
        interaction(4, [asked("again"), said("third"), asked("more")], "fine", session_id="c", minutes=3),
    ]
    made = Made(tmp_path, rows)
    assert made.texts == [("regenerated", "third", "second")] and made.dropped == {"earlier_vote": 1}


def test_the_surest_source_pairs_an_answer_and_another_choice_of_confidences_changes_it(tmp_path):
    rows = [*(dict(each) for each in CONTINUED[:3]), interaction(1, "again", "a far better try", session_id="z")]
    thumbs = [thumb(1, interaction_id="i1"), thumb(-1, interaction_id="i3")]
    made = Made(tmp_path, rows, thumbs)
    assert made.texts == [("rated", "a far better try", "first try")] and made.dropped == {"paired_by_surer_source": 1}
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    made = Made(tmp_path, tables=tables, confidence={"regenerated": 0.9})
    assert made.texts == [("regenerated", "second try", "first try")] and made.pairs[0]["confidence"] == 0.9
    assert Made(tmp_path, tables=tables, confidence={"rated": 0}).texts == [("regenerated", "second try", "first try")]


def test_sources_that_disagree_pair_nothing_and_the_card_shows_how_often_they_agree(tmp_path):
    rows, thumbs = [], []
    for n, liked in enumerate((1, 1, -1)):
        rows += [
            interaction(f"{n}a", f"again {n}", "first try", session_id=f"c{n}"),
            interaction(f"{n}b", f"again {n}", "second try", session_id=f"c{n}", minutes=1),
            interaction(
                f"{n}c", [asked(f"again {n}"), said("second try"), asked("m")], f"end {n}", session_id=f"c{n}", minutes=2
            ),
        ]
        thumbs.append(thumb(liked, interaction_id=f"i{n}b"))
    made = Made(tmp_path, rows, thumbs)
    assert len(made.pairs) == 2 and made.dropped == {"sources_disagree": 2}
    assert made.counts["agreement"] == [{"one": "rated", "other": "regenerated", "pairs": 3, "agree": 2}]
    assert "| rated | regenerated | 3 | 67% |" in made.card


def test_ties_are_counted(tmp_path):
    rows = [interaction(n, "q", f"answer {n}") for n in range(3)]
    made = Made(tmp_path, rows, [thumb(value, interaction_id=f"i{n}") for n, value in enumerate((1, 1, -1))])
    assert made.counts["ties"] == {"comparisons": 2, "ties": 1}  # each answer beside the best one
    assert "Of 2 comparisons of two graded answers to one prompt, 1 are ties (50%)." in made.card


def edit(of, said):
    return thumb(0, interaction_id=of, name="correction", label="corrected", comment=said) | {"value": None}


@pytest.mark.parametrize("liked", ["i1", "i2"])  # the answer itself, or a copy of it in another session
def test_an_answer_that_a_person_corrected_is_not_wanted_whoever_liked_it(tables, tmp_path, liked):
    rows = [interaction(n, "ask", "the model's answer", session_id=f"s{n}") for n in (1, 2)]
    store(tables, "interactions", rows)
    store(tables, "feedback", [edit("i1", "what a person wrote"), thumb(1, interaction_id=liked)])
    clean(tables, "tutor", days_of(rows), CurationSettings())
    made = Made(tmp_path, tables=tables)
    assert made.texts == [("edited", "what a person wrote", "the model's answer")] and not made.dropped
    assert [(json.loads(each["answer"])[0]["content"], each["desirable"]) for each in made.answers] == [
        ("the model's answer", False)
    ]


def test_a_correction_is_chosen_over_the_answer_and_takes_no_verdict_of_it(tables, tmp_path):
    rows = [
        interaction(1, "first", "the model's first answer", session_id="a"),
        interaction(
            2, [asked("first"), said("the model's first answer"), asked("more")], "and more", session_id="a", minutes=1
        ),
        *(interaction(n, f"ask {n}", f"the model's answer {n}", session_id=f"s{n}") for n in range(3, 7)),
        interaction(8, "long", "an answer, and a part that a person takes out", session_id="h"),
    ]
    same = [edit(f"i{n}", "please write to the office") for n in range(3, 7)]  # no placeholder: people sent them
    edits = [edit("i1", "a person's first answer"), *same, edit("i8", "a part that a person takes out")]
    store(tables, "interactions", rows)
    store(tables, "feedback", [*edits, thumb(-1, interaction_id="i1")])
    clean(tables, "tutor", days_of(rows), CurationSettings())
    made = Made(tmp_path, tables=tables)
    assert made.texts == sorted(
        [
            ("edited", "a person's first answer", "the model's first answer"),
            ("edited", "a part that a person takes out", "an answer, and a part that a person takes out"),
            *(("edited", "please write to the office", f"the model's answer {n}") for n in range(3, 7)),
        ]
    )
    assert not made.dropped and {pair["chosen_id"] for pair in made.pairs} == {None}
    assert {pair["confidence"] for pair in made.pairs} == {0.95}
    assert [(json.loads(each["answer"])[0]["content"], each["desirable"]) for each in made.answers] == [
        ("the model's first answer", False)
    ]
