"""Architectures nobody has named here either keep packed documents apart or are refused before they are trained."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from model_ops.jobs.job import ModelError
from model_ops.models.model_directory import load_model

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
APART = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "olmo": {},
    "qwen2_moe": {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "num_experts": 4},
}
"""Architectures outside the table in which attention alone keeps documents apart."""
STATES = {
    "stablelm": {},
    "nemotron": {},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 16},
}
"""Architectures outside the table with a state, whose documents are computed as rows of their own."""
REFUSED = {
    "mamba": {"state_size": 8},
    "bloom": {"n_layer": 2, "n_head": 4},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 256},
}


def written(name, own, folder):
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**SMALL, **own})).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_an_architecture_whose_documents_see_each_other_is_refused(name, tmp_path):
    folder = written(name, REFUSED[name], tmp_path)
    with pytest.raises(ModelError, match=r"influence each other|does not support packed documents") as refusal:
        load_model(folder, attention="packed")
    assert "trained are llama, " in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", [*APART, *STATES])
def test_an_architecture_that_is_let_through_gives_each_documents_own_logits(name, tmp_path):
    folder = written(name, {**APART, **STATES}[name], tmp_path)
    packed = load_model(folder, attention="packed")
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    lengths, ids = [9, 30, 21], torch.randint(3, 61, (60,), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(length) for length in lengths])
    with torch.no_grad():
        ours = packed(input_ids=ids[None], position_ids=positions[None], use_cache=False, document_lengths=lengths).logits[0]
        theirs = torch.cat([plain(input_ids=part[None], use_cache=False).logits[0] for part in ids.split(lengths)])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_on_several_processes_an_architecture_that_cannot_be_tried_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"phi3 cannot be trained on several processes, only llama, .*leave mesh out"):
        load_model(written("phi3", {}, tmp_path), attention="packed", device="meta")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_experts_of_a_width_that_grouped_products_refuse_are_run_all_the_same(dtype, tmp_path):
    own = {"moe_intermediate_size": 18, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    model = load_model(written("qwen3_moe", own, tmp_path), dtype, attention="packed")
    logits = model(input_ids=torch.arange(20)[None], use_cache=False).logits
    assert bool(torch.isfinite(logits).all()) and float(logits.detach().std()) > 0
