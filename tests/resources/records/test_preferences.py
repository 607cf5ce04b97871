"""Thumbs down turned into preference rows: the pairs, what is on record, and that counts still add up."""

import pyarrow.parquet as pq
import pytest
from interaction_rows import days_of, interaction, read, store, thumb

from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.selection import curate
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables

ASK = "please explain how the garbage collector of this runtime finds cycles between objects"
OTHER = "tell me which of the three harbours along this coast has the deepest water in winter"


@pytest.mark.parametrize("prefer", [True, False])
def test_an_answer_turned_down_meets_the_best_other_answer_to_its_prompt(tmp_path, prefer):
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    rows = [
        interaction(1, ASK, "It never does, buy more memory for the machine."),
        interaction(2, ASK.upper(), "It marks all that can be reached from the roots and sweeps away the rest."),
        interaction(3, ASK, "It counts references, and looks for islands of them every now and then.", choice_index=1),
        interaction(4, OTHER, "I do not know and do not care."),
        interaction(5, OTHER + " please", "The northern one, by some four metres, says the pilot book."),
    ]
    store(tables, "interactions", rows)
    store(
        tables,
        "feedback",
        [
            thumb(-1, interaction_id="i1"),
            {**thumb(1, interaction_id="i3"), "name": "preference"},
            thumb(-1, interaction_id="i4"),
        ],
    )
    settings = CurationSettings(feedback={"thumbs_down": "prefer" if prefer else "drop"}, near_duplicates={"enabled": False})
    clean(tables, "tutor", days_of(rows), settings)
    report = curate(tables, "tutor", tmp_path / "v1", settings, None)
    assert (report.read, report.kept, report.dropped) == (5, 3, {"thumbs_down": 2})
    decisions = {row["interaction_id"]: row for row in read(tables, "decisions") if row["stage"] == "curate"}
    assert decisions["i4"]["detail"] == "feedback -1" and decisions["i4"]["kept_id"] is None
    if not prefer:
        assert not (tmp_path / "v1" / "preferences").exists() and decisions["i1"]["detail"] == "feedback -1"
        return
    assert (
        decisions["i1"]["detail"] == "feedback -1, rejected answer of a preference row" and decisions["i1"]["kept_id"] == "i3"
    )
    pairs = pq.read_table(tmp_path / "v1" / "preferences" / "preferences.parquet").to_pylist()
    assert [(pair["chosen_id"], pair["rejected_id"]) for pair in pairs] == [("i3", "i1")]
    assert pairs[0]["prompt"] == rows[2]["messages"] and pairs[0]["chosen"] == rows[2]["completion"]
    assert pairs[0]["rejected"] == rows[0]["completion"] and pairs[0]["rejected_feedback"] == -1
