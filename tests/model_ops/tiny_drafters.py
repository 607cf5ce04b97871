"""Tiny drafters of every architecture for a tiny target, away from where training begins."""

import torch
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from model_ops.families.mtp_tensors import LAYER
from model_ops.jobs import Job
from model_ops.speculators.decoder_config import Eagle3Config
from model_ops.speculators.eagle3.network import Eagle3
from model_ops.speculators.factory import new_draft_model
from model_ops.speculators.registry import speculator_settings


def tiny_dflash(runner, drafts=3, seed=0, **changes):
    """Two layers that read three states, away from where training begins."""
    settings = speculator_settings(
        architecture="dflash", num_speculative_tokens=drafts, seed=seed, **{"num_layers": 2, "captured_layers": 3, **changes}
    ).resolved()
    model = new_draft_model(settings, runner, torch.arange(runner.embedding.shape[0])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.requires_grad_(False)


def mtp_layer_tensors(config, seed=0):
    """A random multi-token-prediction layer for a Qwen2, by the names that MiMo's checkpoints have."""
    torch.manual_seed(seed)
    hidden = config.hidden_size
    tensors = {
        f"{name}.weight": 1 + 0.2 * torch.randn(hidden) for name in ("token_layernorm", "hidden_layernorm", "final_layernorm")
    }
    tensors["input_proj.weight"] = torch.randn(hidden, 2 * hidden) / hidden**0.5
    block = Qwen2DecoderLayer(config, layer_idx=0).state_dict()
    tensors |= {
        name: 1 + 0.2 * torch.randn_like(tensor) if "norm" in name else 0.2 * torch.randn_like(tensor)
        for name, tensor in block.items()
    }
    return {f"{LAYER}{name}": tensor for name, tensor in tensors.items()}


def tiny_eagle3(target, draft_vocab_size=40, seed=0, newer=False, num_layers=1):
    """EAGLE-3, or 3.1 where `newer`, with a draft vocabulary and layers that are no longer as they began."""
    torch.manual_seed(seed)
    return _shaken(
        Eagle3(
            Eagle3Config.for_target(target.config, draft_vocab_size, fc_norm=newer, norm_output=newer, num_layers=num_layers)
        ),
        target,
        newer,
    )


def _shaken(model, target, norms=False):
    vocab, draft_vocab_size = target.config.vocab_size, model.config.draft_vocab_size
    ids = torch.randperm(vocab - 3)[: draft_vocab_size - 3].sort().values + 3
    ids = torch.cat((torch.arange(3), ids))  # padding and ends of text among them
    model.set_draft_vocabulary(ids)
    model.warm_start(target.get_input_embeddings().weight, target.lm_head.weight, target.model.norm.weight)
    for name, parameter in model.named_parameters():
        if name.startswith(("midlayer.", "layers.")) or (norms and "norm" in name):
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model.eval()


def drafter_job(place, output, inputs=None, **settings):
    """Trains a drafter for place/target on place/answers."""
    settings = {"learning_rate": 2e-3, "tokens_per_step": 256, "max_length": 256, "precision": "float32", **settings}
    given = {"target": place / "target", "dataset": place / "answers", **(inputs or {})}
    return Job(operation="speculator", output=output, inputs=given, settings={"num_speculative_tokens": 2, **settings})
