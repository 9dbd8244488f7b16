"""What makes the configuration of each model type tiny: values for all, and those of one type."""

from __future__ import annotations

from typing import Any

VOCAB = 128
WINDOW = 8
LAYERS = 4

#: In place of a value: leave this one as the configuration has it.
LEFT = object()

_MIXED = ["sliding_attention", "full_attention"] * 2
_LINEAR = ["linear_attention", "full_attention"] * 2
_LATENT = {"head_dim": LEFT, "num_key_value_heads": 4}

#: Given to every configuration that knows the name, itself or through its ``attribute_map``.
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "is_decoder": True,
    "tie_word_embeddings": False,
    "type_vocab_size": 2,
    # Windows.
    "sliding_window": WINDOW,
    "attention_window_size": WINDOW,
    "attention_chunk_size": WINDOW,
    "query_pre_attn_scalar": 16,
    # Other names for the sizes.
    "d_model": 64,
    "d_ff": 96,
    "ffn_dim": 96,
    "n_embd": 64,
    "n_layer": LAYERS,
    "n_head": 4,
    "n_positions": 256,
    "n_ctx": 256,
    "rotary_dim": 8,
    "num_layers": LAYERS,
    "num_heads": 4,
    "attention_heads": 4,
    "decoder_layers": LAYERS,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "embedding_size": 64,
    # Experts.
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_topk": 2,
    "moe_top_k": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_group": 1,
    "first_k_dense_replace": 1,
    # Latent attention.
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "index_topk": 1000,
    "index_n_heads": 2,
    "index_head_dim": 16,
    # Linear attention and state spaces.
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "state_size": 16,
}

#: Given to the parts of a model that see or hear.
PERIPHERAL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}

_MAMBA_HYBRID = {"layer_types": ["mamba", "attention"] * 2}
_BART = {"encoder_layers": LAYERS}
_GEMMA3N = {
    "layer_types": _MIXED,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 16,
    "laurel_rank": 8,
    "altup_num_inputs": 2,
    "num_kv_shared_layers": 0,
    "activation_sparsity_pattern": [0.0] * LAYERS,
}
_GEMMA4 = {
    "layer_types": _MIXED,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 16,
    "per_layer_config": {},
}
_ASSISTANT = {
    "vocab_size_per_layer_input": 0,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": LAYERS,
}
_DOTS3 = {
    "num_key_value_heads": 4,
    "head_dim": LEFT,
    "layer_types": ["indexed_attention", "sliding_attention"] * 2,
    "per_layer_config": {"01": {"head_dim": 24}, "03": {"head_dim": 24}},
}
_INKLING = {
    "unpadded_vocab_size": VOCAB,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "rel_extent": 64,
    "layer_types": ["hybrid_sliding", "hybrid"] * 2,
}
_LLAMA4 = {
    "layer_types": ["chunked_attention", "full_attention"] * 2,
    "intermediate_size_mlp": 64,
}
_INDEXED = {
    "layer_types": ["linear_attention", "indexed_attention"] * 2,
    "hc_lowrank": 16,
    "ple_embed_dim": 16,
    "ngram_vocab_size_base": 128,
    "split_ngram_parts": 1,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 64,
    "indexer_compress_ratio": 2,
}
_MUSICGEN = {"num_codebooks": 1, "decoder_start_token_id": 0}

#: Of one type, on top of the common values. A name of a part holds the values of that part.
OWN: dict[str, dict[str, Any]] = {
    "axk1": _LATENT,
    "axk2": _LATENT,
    "bailing_hybrid": {
        "layer_types": _LINEAR,
        "head_dim": LEFT,
        "num_key_value_heads": 4,
        "num_experts": 4,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "q_lora_rank": None,
    },
    "bamba": {"attn_layer_indices": [1, 3]},
    "bart": _BART,
    "bigbird_pegasus": _BART | {"attention_type": "original_full"},
    "big_bird": {"attention_type": "original_full"},
    "blenderbot": _BART,
    "blenderbot-small": _BART,
    "blt": {"encoder_hash_byte_group_vocab": 512},
    "cohere_compass_text": {
        "layer_types": _MIXED,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "cohere2": {"layer_types": _MIXED},
    "cohere2_moe": {"layer_types": _MIXED},
    "cpmant": {"dim_head": 16, "dim_ff": 96, "prompt_length": 8},
    "ctrl": {"dff": 96},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {
            "ffn_hidden_size": 64,
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "hidden_size": 64,
        },
    },
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT,
    "dory": {
        "num_hidden_layers": 8,
        "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp"] * 2,
        "n_input_layers": 2,
        "n_recurrent_layers": 4,
        "n_output_layers": 2,
    },
    "dots3_note": {
        "text_config": _DOTS3,
        "vision_config": {
            "adapter_in_dim": 32,
            "adapter_out_dim": 64,
            "num_local_experts": 4,
            "moe_intermediate_size": 16,
            "per_layer_config": {},
        },
        "audio_config": {
            "adapter_input_size": 32,
            "adapter_out_dim": 64,
            "downsample_hidden_size": 16,
        },
    },
    "dots3_note_text": _DOTS3,
    "exaone4": {"sliding_window_pattern": 2},
    "falcon_h1": {"mamba_d_ssm": 128},
    "fuyu": {"text_config": {"model_type": "persimmon"}},
    "gemma3": {
        "text_config": {"layer_types": _MIXED},
        "vision_config": {"model_type": "siglip_vision_model"},
    },
    "gemma3_text": {"layer_types": _MIXED},
    "gemma3n_text": _GEMMA3N,
    "gemma3n": {"text_config": _GEMMA3N},
    "gemma4": {"text_config": _GEMMA4},
    "gemma4_assistant": {"text_config": {"model_type": "gemma4_text"} | _GEMMA4 | _ASSISTANT},
    "gemma4_text": _GEMMA4,
    "gemma4_unified": {"text_config": {"layer_types": _MIXED, "per_layer_config": {}}},
    "gemma4_unified_assistant": {
        "text_config": {
            "model_type": "gemma4_unified_text",
            "layer_types": _MIXED,
            "per_layer_config": {},
            "num_kv_shared_layers": LAYERS,
        }
    },
    "gemma4_unified_text": {"layer_types": _MIXED, "per_layer_config": {}},
    "glm4_moe_lite": _LATENT,
    "glm_moe_dsa": _LATENT,
    "got_ocr2": {"text_config": {"model_type": "qwen2"}, "vision_config": {"output_channels": 16}},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": WINDOW},
    "granitemoehybrid": _MAMBA_HYBRID | {"shared_intermediate_size": 64},
    "inkling2_loop_text": _INKLING
    | {
        "loop_layer_index_start": 1,
        "loop_layer_index_end": 3,
        "loop_num_passes": 2,
        "n_layers_per_attn_res_block": 1,
        "loop_gate_rank": 8,
    },
    "inkling2_text": _INKLING | {"n_layers_per_attn_res_block": 2},
    "inkling_text": _INKLING,
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "use_mamba_kernels": False,
        "mamba_d_state": 8,
    },
    "kimi_linear": _LATENT
    | {
        "layer_types": _LINEAR,
        "q_lora_rank": None,
        "num_experts": 4,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
    },
    "kolibri1": {"num_local_experts": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "llama4": {"text_config": _LLAMA4},
    "llama4_text": _LLAMA4,
    "longcat_flash": _LATENT | {"zero_expert_num": 2, "head_dim": 8},
    "mamba2": {"num_heads": 8},
    "marian": _BART,
    "mbart": _BART,
    "minicpm3": _LATENT,
    "minimax": {"layer_types": _LINEAR},
    "moshi": {"audio_vocab_size": VOCAB},
    "moss_transcribe_diarize": {"text_config": {"model_type": "qwen3"}},
    "mvp": _BART,
    "mpt": {"use_cache": True},  # its default is False
    "musicgen": {"decoder": _MUSICGEN},
    "musicgen_melody": {"decoder": _MUSICGEN},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "mamba", "mlp"], "n_groups": 1},
    "pegasus": _BART,
    "plbart": _BART,
    "prophetnet": {
        "num_encoder_layers": LAYERS,
        "num_decoder_layers": LAYERS,
        "num_decoder_attention_heads": 4,
        "num_encoder_attention_heads": 4,
    },
    "qwen3_5": {"text_config": {"layer_types": _LINEAR}},
    "qwen3_5_moe": {"text_config": {"layer_types": _LINEAR}},
    "qwen3_5_text": {"layer_types": _LINEAR},
    "qwen3_5_moe_text": {"layer_types": _LINEAR},
    "qwen3_moe": {"num_experts": 4, "num_local_experts": 4},
    "qwen3_next": {"layer_types": _LINEAR},
    "qwen4_exp": {"text_config": _INDEXED},
    "qwen4_exp_text": _INDEXED,
    "recurrent_gemma": {"lru_width": 64, "block_types": ["recurrent", "attention"]},
    "reformer": {
        "axial_pos_embds_dim": [32, 32],
        "axial_pos_shape": [16, 16],
        "attention_head_size": 16,
        "feed_forward_size": 96,
        "local_attn_chunk_length": 16,
        "lsh_attn_chunk_length": 16,
    },
    "roc_bert": {
        "pronunciation_embed_dim": 16,
        "pronunciation_vocab_size": VOCAB,
        "shape_embed_dim": 16,
        "shape_vocab_size": VOCAB,
    },
    "sarvam_mla": _LATENT,
    "whisper": _BART,
    "xlnet": {"d_inner": 96},
    "xlstm": {"hidden_size": 128, "num_heads": 2},
    "youtu": _LATENT,
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
        "num_key_value_heads": 4,
    },
    "zamba2": {
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "num_mem_blocks": 1,
    },
    "zaya": {
        "num_experts_per_tok": 1,
        "layer_types": ["hybrid_sliding", "hybrid"] * 2,
        "router_hidden_size": 16,
    },
}

#: Other shapes of a type, by name.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "falcon": {
        "alibi": {"alibi": True},
        "new": {"new_decoder_architecture": True, "num_kv_heads": 2},
    },
    "gemma3n_text": {"shared": {"num_kv_shared_layers": 2}},
    "gemma4_text": {"shared": {"num_kv_shared_layers": 2}},
    "mistral": {"full": {"sliding_window": None}},
    "phi3": {"full": {"sliding_window": None}},
    "qwen2": {"sliding": {"use_sliding_window": True, "max_window_layers": 2}},
    "starcoder2": {"full": {"sliding_window": None}},
}

#: With seed 0 the greedy text of these stands still, and would hide a wrong mask.
SEEDS = {
    "bitnet": 1,
    "codegen": 1,
    "cohere": 1,
    "cpmant": 1,
    "dbrx": 2,
    "diffllama": 1,
    "dots1": 2,
    "flint": 1,
    "glm": 1,
    "glm4_moe": 2,
    "got_ocr2": 1,
    "hyperclovax": 1,
    "minimax": 1,
    "moss_transcribe_diarize": 4,
    "opt": 1,
    "phi3:full": 7,
    "qwen2": 6,
    "qwen2_moe": 4,
    "qwen3_moe": 5,
    "sarvam_moe": 1,
    "seed_oss": 6,
    "solar_open": 11,
    "xlm-roberta-xl": 8,
}
