"""Tiny models of four layers, of many families: for what has to hold of any decoder."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.helpers import VOCAB, WINDOW, _finish

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_MIXED = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
_MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
_GPT2 = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 256}
_LATENT = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 4,
}
_GEMMA3N = {
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 16,
    "laurel_rank": 8,
    "altup_num_inputs": 2,
    "num_kv_shared_layers": 2,
    "activation_sparsity_pattern": [0.0] * 4,
}

#: Model type, what differs from the base, and what of the base the configuration does not know.
_FAMILIES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "llama": ("llama", {}, ()),
    "qwen3": ("qwen3", {}, ()),
    "mistral": ("mistral", {"sliding_window": WINDOW}, ()),
    "gemma2": ("gemma2", {"sliding_window": WINDOW, "query_pre_attn_scalar": 16}, ()),
    "gemma3": ("gemma3_text", _MIXED | {"query_pre_attn_scalar": 16}, ()),
    "gpt2": ("gpt2", _GPT2, tuple(_BASE)[1:8]),
    "gpt_neox": ("gpt_neox", {}, ("head_dim",)),
    "opt": ("opt", {"ffn_dim": 96, "word_embed_proj_dim": 64}, ("head_dim",)),
    "falcon": ("falcon", {"alibi": False, "multi_query": True}, ("head_dim",)),
    "phi": ("phi", {}, ("head_dim",)),
    "gpt_oss": ("gpt_oss", _MOE | {"sliding_window": WINDOW}, ()),
    "deepseek_v3": ("deepseek_v3", _LATENT, ("head_dim",)),
    "gemma3n": ("gemma3n_text", _GEMMA3N | _MIXED, ()),
}

#: Those that have an early exit.
EXIT_FAMILIES = tuple(name for name in _FAMILIES if name != "gemma3n")


def make_family(family: str, *, attention: str = "eager", seed: int = 0, **changes: Any) -> Any:
    """Make a model of a family, with weights that are large enough for a wrong mask to show."""
    kind, own, unknown = _FAMILIES[family]
    values = {name: value for name, value in _BASE.items() if name not in unknown}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **(values | own | changes))
    return _finish(AutoModelForCausalLM.from_config(config, attn_implementation=attention))
