"""Splits by user and session: they stay what they are, and nothing of a held-out row is learnt."""

import hashlib
import json
import random
from collections import Counter

import pytest
from curated_rows import built, curated, example, row, seeds

from resources.composing.dataset_settings import DatasetError, DatasetSettings
from resources.composing.datasets import lent_by
from resources.curating.curation import NearDuplicates

HALF = DatasetSettings(test_share=0.3, validation_share=0.2)
OFF = NearDuplicates(enabled=False)


def splits_of(rows, by="session_id"):
    return {each[by]: each["split"] for each in rows if each["origin"] == "interaction"}


def prose(number, words=60):
    return " ".join(f"w{(number * 7919 + place * place) % 997}" for place in range(words))


def test_all_sessions_of_a_user_are_in_one_split(tmp_path):
    rows = [row(n, f"question {n}", f"answer {n}", user_hash=f"u{n % 20}") for n in range(100)]
    path = curated(tmp_path / "c.parquet", rows)
    _, found = built(path, tmp_path / "d", HALF)
    by_user = {n: {each["split"] for each in found if int(each["row_id"][1:]) % 20 == n} for n in range(20)}
    assert len(found) == 100 and all(len(splits) == 1 for splits in by_user.values())
    assert set().union(*by_user.values()) == {"train", "validation", "test"}
    _, alone = built(path, tmp_path / "e", HALF.model_copy(update={"split_by": "session"}))
    assert splits_of(alone) != splits_of(found)


def test_rated_chats_are_held_out_only_where_nothing_else_is(tmp_path):
    rows = [row(n, f"question {n}", f"answer {n}", source="millrace_chat" if n % 2 else "gateway") for n in range(60)]
    report, found = built(curated(tmp_path / "c.parquet", rows), tmp_path / "d", HALF)
    held = [each["source"] for each in found if each["split"] != "train"]
    trained = {each["source"] for each in found if each["split"] == "train"}
    assert set(held) == {"gateway"} and trained == {"gateway", "millrace_chat"}
    assert report.by_rule["rated_chat"] == 60 - len(found)
    chats = [each for each in rows if each["source"] == "millrace_chat"]
    alone, found = built(curated(tmp_path / "a.parquet", chats), tmp_path / "e", HALF)
    assert len(found) == 30 and "rated_chat" not in alone.by_rule


@pytest.mark.parametrize("shares", [{"test_share": 0.3, "validation_share": 0.2}, pytest.param({}, marks=pytest.mark.slow)])
def test_no_row_setting_or_day_moves_a_session(tmp_path, shares):
    spec = DatasetSettings(**shares)
    rows = [row(n, f"question {n}", f"answer {n}", day=n // 40, user_hash=f"u{n % 97}" if n % 3 else None) for n in range(200)]
    _, found = built(curated(tmp_path / "all.parquet", rows), tmp_path / "all", spec)
    whole = splits_of(found)
    for name, some, change in (
        ("fewer", rows[:120], {}),
        ("later", rows[80:], {}),
        ("bounded", rows, {"max_rows": 30, "balance": "uniform"}),
        ("mixed", rows, {"mix": {"gateway": {"rows": 20}}}),
        ("less", rows, {"test_share": spec.test_share / 2}),
    ):
        _, part = built(
            curated(tmp_path / f"{name}.parquet", some),
            tmp_path / name,
            spec.model_copy(
                update=DatasetSettings(**change).model_dump(exclude_unset=True)
                | ({"mix": DatasetSettings(**change).mix} if "mix" in change else {})
            ),
        )
        moved = {session: (whole[session], split) for session, split in splits_of(part).items() if whole[session] != split}
        allowed = {("test", "train")} if name == "less" else set()
        assert len(part) > 10 and set(moved.values()) <= allowed, name


def test_a_new_row_displaces_no_more_rows_than_the_quotas_change_by(tmp_path):
    spec = DatasetSettings(test_share=0, validation_share=0, max_rows=100)
    rows = [row(n, f"question {n}", f"answer {n}", prompt_shape=f"shape{n % 3}") for n in range(400)]
    before = {each["row_id"] for each in built(curated(tmp_path / "a.parquet", rows), tmp_path / "a", spec)[1]}
    more = [*rows, *(row(1000 + n, f"new {n}", f"other {n}", prompt_shape="shape1") for n in range(10))]
    after = {each["row_id"] for each in built(curated(tmp_path / "b.parquet", more), tmp_path / "b", spec)[1]}
    assert len(before) == len(after) == 100 and len(before - after) <= 10


def test_what_small_traffic_lends_to_a_split_stays_there(tmp_path):
    few = [row(n, f"question {n}", f"answer {n}") for n in range(5)]
    report, found = built(curated(tmp_path / "a.parquet", few), tmp_path / "a", DatasetSettings())
    assert set(Counter(each["split"] for each in found)) == {"train", "validation", "test"} and report.lent
    many = [*few, *(row(n, f"question {n}", f"answer {n}") for n in range(5, 120))]
    path = curated(tmp_path / "b.parquet", many)
    _, later = built(path, tmp_path / "b", DatasetSettings(), lent_before=lent_by([report.as_metrics()]))
    assert {session: splits_of(later)[session] for session in splits_of(found)} == splits_of(found)
    _, without = built(path, tmp_path / "c", DatasetSettings())
    assert splits_of(without) != splits_of(later), "the hash alone would have moved one"


def test_one_user_for_all_traffic_is_said(tmp_path):
    path = curated(tmp_path / "a.parquet", [row(n, f"q {n}", f"a {n}", user_hash="service") for n in range(20)])
    with pytest.raises(
        DatasetError, match=r"20 sessions are of 1 user, too few to hold one out: set datasets\.sft\.split_by to session"
    ):
        built(path, tmp_path / "a", DatasetSettings())
    assert built(path, tmp_path / "b", DatasetSettings(split_by="session"))[0].rows["test"]
    assert built(path, tmp_path / "c", DatasetSettings(test_share=0, validation_share=0))[0].rows["train"] == 20


def branch(session, first, second, number):
    history = [{"role": "user", "content": first}, {"role": "assistant", "content": f"answer to {first}"}]
    return row(number, [*history, {"role": "user", "content": second}], f"answer to {second}", session_id=session)


def test_branches_of_a_held_out_conversation_are_not_learnt_and_stock_phrases_are(tmp_path):
    rows = [branch(f"{side}{n}", f"opening {n}", f"{side} {n}", f"{side}{n}") for n in range(60) for side in "xy"]
    rows += [branch(f"g{n}", "hello", f"then {n}", f"g{n}") for n in range(30)]
    report, found = built(curated(tmp_path / "a.parquet", rows), tmp_path / "a", HALF)
    openings = {
        split: {json.loads(each["messages"])[0]["content"] for each in found if each["split"] == split}
        for split in ("train", "validation", "test")
    }
    assert openings["train"] & openings["test"] == openings["train"] & openings["validation"] == {"hello"}
    assert openings["validation"] & openings["test"] == {"hello"}
    assert 10 < report.by_rule["shares_turns_with_held_out"] < 60
    [said] = [each for each in report.decisions.to_pylist() if each["rule"] == "shares_turns_with_held_out"][:1]
    assert not said["kept"] and said["kept_id"][2:] == said["interaction_id"][2:] != said["kept_id"]


@pytest.mark.parametrize("near", [OFF, NearDuplicates()])
def test_near_copies_never_straddle_splits_where_curation_keeps_them(tmp_path, near):
    rows = []
    for n in range(40):
        text = prose(n)
        rows += [row(f"x{n}", f"tell {n}", text), row(f"y{n}", f"tell {n}", text.replace(" ", " x ", 1))]
    report, found = built(curated(tmp_path / "a.parquet", rows, near), tmp_path / "a", HALF, near=near)
    placed = splits_of(found, "row_id")
    straddling = [n for n in range(40) if f"ix{n}" in placed and f"iy{n}" in placed and placed[f"ix{n}"] != placed[f"iy{n}"]]
    assert bool(straddling) is near.enabled, "with near duplicates on, curation drops one of them before"
    assert ("near_copy_of_held_out" in report.by_rule) is not near.enabled


def test_seeds_that_repeat_traffic_are_left_out_with_a_decision(tmp_path):
    rows = [row(n, f"tell {n}", prose(n)) for n in range(30)]
    lines = [
        example("tell 3", prose(3)),
        example("TELL  4", prose(4)),
        example("tell 5", prose(5).replace(" ", " x ", 1)),
        example("tell 900", prose(900)),
        example("tell 900", prose(900).replace(" ", " y ", 1)),
        example("short", "yes"),
    ]
    path = curated(tmp_path / "a.parquet", rows)
    report, found = built(path, tmp_path / "a", HALF, seeds(tmp_path, lines))
    decided = {
        each["interaction_id"]: each for each in report.decisions.to_pylist() if each["interaction_id"].startswith("seed:")
    }
    assert Counter(each["rule"] for each in decided.values()) == {
        "duplicate_of_traffic": 2,
        "near_duplicate_of_traffic": 1,
        "near_duplicate_of_seed": 1,
        "kept": 2,
    }
    assert {each["kept_id"] for each in decided.values()} >= {"i3", "i4", "i5"}
    assert len([each for each in found if each["origin"] == "seed"]) == 2
    report, _ = built(path, tmp_path / "b", HALF, seeds(tmp_path, lines), near=OFF)
    held = splits_of(found, "row_id")["i5"] != "train"
    assert ("near_duplicate_of_traffic" in report.by_rule) is held and "near_duplicate_of_seed" not in report.by_rule


STRATA = DatasetSettings(test_share=0.1, validation_share=0.1, stratify_by=["prompt_shape"])


def by_shape(rows, split):
    return {each["prompt_shape"] for each in rows if each["split"] == split}


def test_a_stratum_of_ten_users_has_one_in_every_split(tmp_path):
    rows = [row(n, f"question {n}", f"answer {n}", prompt_shape=f"shape{n % 12}") for n in range(150)]
    rows += [row(200 + n, f"rare {n}", f"answer {n}", prompt_shape="rare") for n in range(9)]
    path, shapes = curated(tmp_path / "a.parquet", rows), {f"shape{n}" for n in range(12)}
    report, found = built(path, tmp_path / "a", STRATA)
    assert all(by_shape(found, split) >= shapes for split in ("train", "validation", "test"))
    _, plain = built(path, tmp_path / "b", STRATA.model_copy(update={"stratify_by": []}))
    assert not by_shape(plain, "test") >= shapes, "the hash alone leaves a stratum without a test row"
    held = {session: split for session, split in splits_of(plain).items() if split != "train"}
    assert held.items() < splits_of(found).items() and report.lent, "strata only add to what the hash holds out"


def test_a_stratum_lends_none_that_an_earlier_version_trained_on(tmp_path):
    drawn = sorted((hashlib.md5(f"0:u{n}".encode()).hexdigest(), f"u{n}") for n in range(60))
    trained = [user for draw, user in drawn if 0.1 <= int(draw[:8], 16) / 2**32 < 0.9]
    old, new = trained[:8], trained[20:26]
    common = [
        row(n, f"question {n}", f"answer {n}", user_hash=user, prompt_shape="common")
        for n, (_, user) in enumerate(drawn)
        if user not in (*old, *new)
    ]
    rows = [
        row(f"rare-{user}", f"rare question of {user}", f"an answer for {user}", user_hash=user, prompt_shape="rare")
        for user in (*old, *new)
    ]
    report, first = built(curated(tmp_path / "a.parquet", common + rows[:8]), tmp_path / "a", STRATA)
    assert by_shape(first, "test") == by_shape(first, "validation") == {"common"}
    _, second = built(
        curated(tmp_path / "b.parquet", common + rows),
        tmp_path / "b",
        STRATA,
        lent_before=lent_by([report.as_metrics()]),
        earlier=[tmp_path / "a"],
    )
    assert splits_of(second).items() > splits_of(first).items()
    assert {
        each["session_id"]: each["split"] for each in second if each["prompt_shape"] == "rare" and each["split"] != "train"
    } == {f"srare-{new[0]}": "test", f"srare-{new[-1]}": "validation"}


@pytest.mark.parametrize("draw", range(2))
def test_law_no_session_that_was_in_a_split_changes_it_while_strata_grow(tmp_path, draw):
    chance = random.Random(draw)
    rows = [
        row(
            f"{draw}-{n}",
            f"question {n} {prose(n, 9)}",
            f"answer {n}",
            prompt_shape=f"shape{chance.randrange(6)}",
            user_hash=f"u{draw}-{chance.randrange(90)}",
            ts=None,
        )
        for n in range(240)
    ]
    before, reports, versions = {}, [], []
    for step, size in enumerate(sorted(chance.sample(range(15, 240), 4))):
        home = tmp_path / f"v{step}"
        report, found = built(
            curated(tmp_path / f"{step}.parquet", rows[:size]), home, STRATA, lent_before=lent_by(reports), earlier=versions
        )
        now = splits_of(found)
        assert {session: now.get(session, split) for session, split in before.items()} == before
        before |= now
        reports.append(report.as_metrics())
        versions.append(home)
    assert len(set(before.values())) == 3
