"""What `--select` takes: Dagster's syntax, and a comma for `or`."""

import pytest

from pipelines.running import run as module


@pytest.fixture(scope="module")
def selected(tmp_path_factory):
    """selected(*texts): the names of the assets that the texts choose."""
    home = tmp_path_factory.mktemp("selection")
    (home / "logs").mkdir()
    (home / "shop.yaml").write_text(
        "workload: shop\nbase_model: tiny\nsources: {gateway: {uri: logs}}\nfirst_day: 2026-06-01\n"
        "last_day: 2026-06-05\ndatasets: {named: {best: {max_rows: 9}}}\n"
    )
    recipe, graph = module.load_recipe(home / "shop.yaml"), module.definitions(home / "shop.yaml", home / "lake")
    return lambda *texts: {key.path[-1] for key in module._selected(graph, recipe, list(texts))}


def test_a_comma_and_a_repeated_option_mean_or(selected):
    assert (
        selected("sft_dataset,best")
        == selected("sft_dataset", "best")
        == selected("sft_dataset or best")
        == {"sft_dataset", "best"}
    )
    assert selected("+sft_dataset, best,") == selected("+sft_dataset or best") > {"curated_interactions", "best"}
    assert selected('key:"shop/sft_dataset"') == {"sft_dataset"}


def test_what_is_no_selection_is_refused_with_examples(selected):
    with pytest.raises(module.SelectionError, match=r"sft_dataset or or best: this is not a selection .* a comma means `or`"):
        selected("sft_dataset or or best")
