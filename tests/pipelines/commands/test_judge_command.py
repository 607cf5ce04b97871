"""A judge in the graph, by the command line: scores as columns, nothing asked twice, one sentence where it is down."""

import json
import random

import pytest
from judge_server import judge_server, scores

from tests.logged import pair

RECIPE = """
workload: shop
base_model: tiny
sources: {{gateway: {{uri: logs}}}}
last_day: 2026-06-01
curation:
  min_quality: 4
  judge: {{base_url: "{base_url}", model: big, retries: 0, concurrency: 4, max_rows: 16}}
"""


def write_logs(folder):
    """Twenty questions of one day, each with an answer of its own."""
    chosen = random.Random(0)
    words = [
        "mill",
        "wheel",
        "water",
        "stone",
        "grain",
        "flour",
        "river",
        "gate",
        "sluice",
        "miller",
        "sack",
        "hopper",
        "axle",
        "gear",
        "beam",
        "floor",
        "bin",
        "chute",
        "bran",
        "sieve",
        "rope",
        "hoist",
        "wind",
        "sail",
        "cap",
        "brake",
        "dust",
    ]

    def line(number):
        said = [f"the {one} is beside the {other}" for one, other in (chosen.sample(words, 2) for _ in range(8))]
        asked = f"Where is the {' and the '.join(chosen.sample(words, 6))}?"
        return pair(number, asked, ", and ".join(said) + ".", timestamp=1780300000 + 60 * number)

    folder.mkdir()
    (folder / "day.jsonl").write_text("".join(json.dumps(line(number)) + "\n" for number in range(20)))


@pytest.mark.slow
def test_rows_are_judged_once_and_a_judge_that_is_down_is_one_sentence(cli, tmp_path):
    write_logs(tmp_path / "logs")
    recipe, lake = tmp_path / "shop.yaml", tmp_path / "lake"
    words = ("run", recipe, "--lake", lake, "--select", "+curated_interactions")
    with judge_server(lambda body, number: scores(3 if number % 4 == 0 else 8, 5)) as (base_url, seen):
        recipe.write_text(RECIPE.format(base_url=base_url))
        assert "judgements" in cli(*words).stdout
        assert len(seen) == 16
        cli(*words)
        assert len(seen) == 16
    statement = (
        "select (select count(*) from shop_curated_interactions where quality = 8) kept, "
        "(select count(*) from shop_curated_interactions where quality < 4) low, "
        "(select count(*) from decisions where rule = 'low_quality') dropped"
    )
    [found] = json.loads(cli("sql", statement, "--lake", lake, "--format", "json").stdout)
    assert found["low"] == 0 and 1 <= found["kept"] <= 16 and found["dropped"] >= 4
    recipe.write_text(RECIPE.format(base_url=base_url).replace("model: big", "model: bigger"))
    done = cli(*words, check=1)
    assert "Traceback" not in done.stderr + done.stdout
    assert f"the judge at {base_url} does not answer" in " ".join(done.stderr.split())
