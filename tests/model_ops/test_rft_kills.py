"""An asynchronous training whose processes are killed: what was sampled and graded is learnt once."""

import pytest
from test_rft import write_prompts
from tiny_models import write_target

from benchmarks.async_rl import KilledRun


@pytest.mark.slow
@pytest.mark.timeout(1_800)  # each start loads torch twice, which takes a minute on a busy machine
def test_kills_of_the_training_and_its_engine_lose_nothing_and_repeat_nothing(tmp_path):
    write_target(tmp_path / "model", layers=2, vocab_size=300)
    write_prompts(tmp_path / "prompts", train=60)
    found = KilledRun(tmp_path / "killed", tmp_path / "model", tmp_path / "prompts", steps=40, seed=1).run(kills=2)
    assert found["lost"] == found["duplicated"] == 0 and found["rollouts"] == 40 * 3 * 4
    assert 1 <= found["largest_staleness"] <= 2
