"""A judge in the graph, by the command line: scores as columns, nothing asked twice, one sentence where it is down."""

import json

from judge_server import judge_server, scores

from pipelines.demo.traffic import write_traffic

RECIPE = """
workload: shop
base_model: tiny
sources: {{gateway: {{uri: traffic/gateway}}}}
last_day: 2026-06-02
curation:
  min_quality: 4
  judge: {{base_url: "{base_url}", model: big, retries: 0, concurrency: 4, max_rows: 40}}
"""


def test_rows_are_judged_once_and_a_judge_that_is_down_is_one_sentence(cli, tmp_path):
    write_traffic(tmp_path / "traffic", interactions=100, days=2)
    recipe, lake = tmp_path / "shop.yaml", tmp_path / "lake"
    words = ("run", recipe, "--lake", lake, "--select", "+curated_interactions")
    with judge_server(lambda body, number: scores(3 if number % 4 == 0 else 8, 5)) as (base_url, seen):
        recipe.write_text(RECIPE.format(base_url=base_url))
        assert "judgements" in cli(*words).stdout
        assert len(seen) == 40
        cli(*words)
        assert len(seen) == 40
    statement = ("select (select count(*) from shop_curated_interactions where quality = 8) kept, "
                 "(select count(*) from shop_curated_interactions where quality < 4) low, "
                 "(select count(*) from decisions where rule = 'low_quality') dropped")
    [found] = json.loads(cli("sql", statement, "--lake", lake, "--format", "json").stdout)
    assert found["low"] == 0 and 1 <= found["kept"] <= 40 and found["dropped"] >= 10
    recipe.write_text(RECIPE.format(base_url=base_url).replace("model: big", "model: bigger"))
    done = cli(*words, check=1)
    assert "Traceback" not in done.stderr + done.stdout
    assert f"the judge at {base_url} does not answer" in " ".join(done.stderr.split())
