"""What the commit log alone can say of a table."""

from interaction_rows import interaction, store

from resources.lake import Lake
from resources.tables import Tables


def test_whether_a_column_holds_anything(tmp_path):
    tables = Tables(Lake.open(tmp_path / "lake"))
    assert not tables.holds("interactions", "tutor", "user_hash")
    store(tables, "interactions", [interaction(1, "a", "b"), interaction(2, "a", "b", day=1)])
    assert not tables.holds("interactions", "tutor", "user_hash") and tables.holds("interactions", "tutor", "messages")
    store(tables, "interactions", [interaction(2, "a", "b", day=1), interaction(3, "a", "b", day=1, user_hash="h")])
    assert tables.holds("interactions", "tutor", "user_hash") and not tables.holds("interactions", "other", "user_hash")
