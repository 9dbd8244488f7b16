"""Tiny models that read more than ids: encoder-decoders, and models that see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
)

from lookahead.hf.compat import KNOWS_FIRST, PREPARES_POSITIONS
from tests.helpers import prompt
from tests.zoo.build import make_config, make_model
from tests.zoo.configs import LAYERS, LEFT, VOCAB

#: Stands for a piece of an image in a prompt; no seeded prompt has it in its other places.
IMAGE = 2

_ENCODER = {"is_decoder": LEFT, "decoder_start_token_id": 1, "forced_eos_token_id": None}
_T5 = _ENCODER | {
    "d_kv": 16,
    "num_decoder_layers": LAYERS,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
}
_WHISPER = _ENCODER | {
    "num_mel_bins": 8,
    "max_source_positions": 20,
    "max_target_positions": 64,
    "begin_suppress_tokens": None,
}
_LLAVA = {
    "text_config": {"model_type": "llama"},
    "vision_config": {
        "model_type": "clip_vision_model",
        "image_size": 16,
        "patch_size": 8,
        "projection_dim": 32,
    },
    "image_token_index": IMAGE,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
}
_QWEN2_VL = {
    "text_config": {
        # Before transformers 5.0 it had another name.
        ("rope_parameters" if KNOWS_FIRST else "rope_scaling"): {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [2, 3, 3],
        }
    },
    "vision_config": {
        "depth": 1,
        "embed_dim": 32,
        "hidden_size": 64,
        "num_heads": 2,
        "mlp_ratio": 2,
        "patch_size": 4,
        "temporal_patch_size": 2,
    },
    "image_token_id": IMAGE,
    "video_token_id": VOCAB + 1,
    "vision_start_token_id": VOCAB + 2,
    "vision_end_token_id": VOCAB + 3,
}


def _text() -> dict[str, Any]:
    return {"input_ids": prompt(20, repeat=4)}


def _sound() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {"input_features": torch.randn(1, 8, 40, generator=generator)}


def _llava_image() -> dict[str, Any]:
    return {"input_ids": _with_image(), "pixel_values": _noise(1, 3, 16, 16)}


def _qwen2_vl_image() -> dict[str, Any]:
    ids = _with_image()
    found = {
        "input_ids": ids,
        "pixel_values": _noise(16, 3 * 2 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
    }
    if PREPARES_POSITIONS:  # before transformers 5.2 there were none
        found["mm_token_type_ids"] = (ids == IMAGE).long()
    return found


def _with_image() -> torch.Tensor:
    ids = prompt(24, repeat=4)
    ids[0, 8:12] = IMAGE
    return ids


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


#: What differs from the common configuration, and what the model is given. The names are those of
#: the types; what follows the colon tells them from causal language models of the same type.
_OTHERS: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "t5:encoder": (_T5, _text),
    "bart:encoder": (_ENCODER, _text),
    "mbart:encoder": (_ENCODER, _text),
    "marian:encoder": (_ENCODER, _text),
    "pegasus:encoder": (_ENCODER, _text),
    "whisper:encoder": (_WHISPER, _sound),
    "llava:image": (_LLAVA, _llava_image),
    "qwen2_vl:image": (_QWEN2_VL, _qwen2_vl_image),
}

#: Encoder-decoders, and models that see.
OTHERS = tuple(_OTHERS)

#: With seed 0 the greedy text of these stands still.
_SEEDS = {"t5:encoder": 1, "marian:encoder": 1, "llava:image": 1, "qwen2_vl:image": 1}

_CLASSES = (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    | MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    | MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
)


def build_other(name: str, attention: str = "sdpa", seed: int | None = None) -> Any:
    """Make one of :data:`OTHERS`, as :func:`~tests.zoo.build.build` makes a causal model."""
    seed = _SEEDS.get(name, 0) if seed is None else seed
    config = make_config(name.partition(":")[0], **_OTHERS[name][0])
    return make_model(other_class(name), config, attention, seed)


def other_class(name: str) -> Any:
    """Return the class that the library has for one of :data:`OTHERS`."""
    return getattr(transformers, _CLASSES[name.partition(":")[0]])


def inputs(name: str) -> dict[str, Any]:
    """Return what ``generate`` of such a model is given."""
    return _OTHERS[name][1]()
