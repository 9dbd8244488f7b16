"""Tiny models whose positions or biases come from the slot of a row, or from the cache's length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
)

from tests.helpers import VOCAB, _finish

_ENDS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_BERT = _ENDS | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "is_decoder": True,
}
_BART = _ENDS | {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 128,
    "is_decoder": True,
    "encoder_no_repeat_ngram_size": 0,
}
_FALCON = _ENDS | {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "alibi": True,
}
_OLD = _ENDS | {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}

_NEO = _ENDS | {
    "hidden_size": 64,
    "num_layers": 2,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 8,
    "max_position_embeddings": 128,
}

#: By model type: sizes, and whether the library has sdpa for it.
SLOT_FAMILIES: dict[str, tuple[dict[str, Any], bool]] = {
    "bloom": (_ENDS | {"hidden_size": 64, "n_layer": 2, "n_head": 4}, False),
    "mpt": (_ENDS | {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 128}, False),
    "falcon": (_FALCON, True),
    "bart": (_BART, True),
    "mbart": (_BART, True),
    "marian": (_BART, True),
    "pegasus": (_BART, True),
    "bigbird_pegasus": (_BART, False),
    "blenderbot": (_BART, True),
    "blenderbot-small": (_BART, True),
    "plbart": (_BART, True),
    "mvp": (_BART, False),
    "trocr": (_BART, False),
    "whisper": (_BART | {"max_target_positions": 128}, True),
    "xglm": (_BART | {"num_layers": 2, "attention_heads": 4, "ffn_dim": 96}, False),
    "gpt_neo": (_NEO, False),
    "ctrl": (_OLD | {"dff": 96}, True),
    "roformer": (_BERT, False),
    "megatron-bert": (_BERT, False),
    "rembert": (_BERT | {"input_embedding_size": 32, "output_embedding_size": 32}, False),
    "big_bird": (_BERT | {"attention_type": "original_full"}, False),
    "roberta": (_BERT, True),
    "xlm-roberta": (_BERT, True),
    "camembert": (_BERT, True),
    "data2vec-text": (_BERT, True),
}


def make_slot_family(family: str, *, attention: str = "eager", seed: int = 0) -> Any:
    """Make a model of a family, with weights that are large enough for a wrong place to show."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **SLOT_FAMILIES[family][0])
    if attention == "sdpa" and not MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._supports_sdpa:
        pytest.skip(f"transformers {transformers.__version__} has no sdpa for {family}")
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    model = _finish(model)
    model.generation_config.use_cache = True  # MPT's configuration says no
    return model


_TWO = {k: v for k, v in _BART.items() if k != "is_decoder"} | {"decoder_start_token_id": 1}
_T5 = _ENDS | {
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "decoder_start_token_id": 0,
}
_SPARSE = {"num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}

#: Encoder-decoders that read text: sizes by model type, and whether the library has sdpa for it.
TWO_PART_FAMILIES: dict[str, tuple[dict[str, Any], bool]] = {
    "t5": (_T5, True),
    "mt5": (_T5, True),
    "umt5": (_T5, True),
    "longt5": (_T5, False),
    "switch_transformers": (_T5 | _SPARSE, False),
    "bart": (_TWO, True),
    "mbart": (_TWO, True),
    "marian": (_TWO, True),
    "pegasus": (_TWO, True),
    "pegasus_x": (_TWO, False),
    "blenderbot": (_TWO, True),
    "plbart": (_TWO, True),
    "mvp": (_TWO, False),
    "m2m_100": (_TWO, True),
    "nllb-moe": (_TWO | {"num_experts": 4}, False),
}


def make_two_parts(family: str, *, attention: str = "eager", seed: int = 0) -> Any:
    """Make an encoder-decoder model with large weights, which searches greedily by default."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **TWO_PART_FAMILIES[family][0])
    kind = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[type(config)]
    if attention == "sdpa" and not kind._supports_sdpa:
        pytest.skip(f"transformers {transformers.__version__} has no sdpa for {family}")
    model = AutoModelForSeq2SeqLM.from_config(config, attn_implementation=attention)
    return _greedy(_finish(model))


def make_whisper(*, attention: str = "eager", seed: int = 0) -> Any:
    """Make a small Whisper, which hears 40 frames of 8 values."""
    torch.manual_seed(seed)
    sizes = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 128}
    config = transformers.WhisperConfig(**(_TWO | sizes))
    kind = transformers.WhisperForConditionalGeneration
    return _greedy(_finish(kind._from_config(config, attn_implementation=attention)))


def _greedy(model: Any) -> Any:
    settings = model.generation_config
    settings.num_beams, settings.forced_eos_token_id = 1, None
    settings.no_repeat_ngram_size, settings.length_penalty, settings.early_stopping = 0, 1.0, False
    settings.max_length = settings.min_length = None
    return model


def cases_of(families: dict[str, tuple[dict[str, Any], bool]]) -> list[tuple[str, str]]:
    """Return each family with each attention that the library has for it."""
    return [
        (family, attention)
        for family, (_, sdpa) in families.items()
        for attention in (("eager", "sdpa") if sdpa else ("eager",))
    ]
