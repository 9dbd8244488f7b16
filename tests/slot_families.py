"""Tiny models whose positions or biases come from the slot of a row, or from the cache's length."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

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
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    model = _finish(model)
    model.generation_config.use_cache = True  # MPT's configuration says no
    return model
