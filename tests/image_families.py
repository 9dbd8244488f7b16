"""Tiny vision-language models, and prompts with an image for them."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from lookahead.hf.compat import KNOWS_FIRST, PREPARES_POSITIONS
from tests.helpers import VOCAB, WINDOW, _finish

IMAGE = 120
_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
_MIXED = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
    "query_pre_attn_scalar": 16,
}
_QWEN_VISION = {
    "depth": 1,
    "embed_dim": 32,
    "hidden_size": 64,
    "num_heads": 2,
    "mlp_ratio": 2,
    "in_channels": 3,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_PLACES = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}

IMAGE_FAMILIES = ("llava", "gemma3", "qwen2_vl")


def make_image_family(family: str, *, attention: str = "sdpa", seed: int = 0) -> Any:
    """Make a model; an image is four tokens to it."""
    torch.manual_seed(seed)
    kind, config = {"llava": _llava, "gemma3": _gemma3, "qwen2_vl": _qwen2_vl}[family]()
    return _finish(kind._from_config(config, attn_implementation=attention))


def image_prompt(family: str, batch: int = 1) -> dict[str, Any]:
    """Return ids with an image in them, the image, and whatever else the family wants."""
    generator = torch.Generator().manual_seed(7)
    before, behind = ([122], [123]) if family == "qwen2_vl" else ([7], [8])
    texts = [[5, 6 + n, *before, *[IMAGE] * 4, *behind, 7, 8, 9 + n, 7, 8] for n in range(batch)]
    ids = torch.tensor(texts)
    found: dict[str, Any] = {"input_ids": ids}
    if family == "qwen2_vl":
        found["pixel_values"] = torch.randn((16 * batch, 96), generator=generator)
        found["image_grid_thw"] = torch.tensor([[1, 4, 4]] * batch)
        if PREPARES_POSITIONS:  # before transformers 5.2 there were none
            found["mm_token_type_ids"] = (ids == IMAGE).long()
    else:
        found["pixel_values"] = torch.randn((batch, 3, 16, 16), generator=generator)
    if family == "gemma3":
        found["token_type_ids"] = (ids == IMAGE).long()
    return found


def _llava() -> tuple[Any, Any]:
    config = transformers.LlavaConfig(
        text_config=_TEXT | {"model_type": "llama"},
        vision_config=_VISION | {"model_type": "clip_vision_model", "projection_dim": 32},
        image_token_index=IMAGE,
        vision_feature_layer=-1,
    )
    return transformers.LlavaForConditionalGeneration, config


def _gemma3() -> tuple[Any, Any]:
    config = transformers.Gemma3Config(
        text_config=_TEXT | _MIXED | {"model_type": "gemma3_text"},
        vision_config=_VISION | {"model_type": "siglip_vision_model", "vision_use_head": False},
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
        boi_token_index=121,
        eoi_token_index=122,
    )
    return transformers.Gemma3ForConditionalGeneration, config


def _qwen2_vl() -> tuple[Any, Any]:
    config = transformers.Qwen2VLConfig(
        text_config=_TEXT
        | {
            "model_type": "qwen2_vl_text",
            ("rope_parameters" if KNOWS_FIRST else "rope_scaling"): _PLACES,
        },
        vision_config=_QWEN_VISION,
        image_token_id=IMAGE,
        video_token_id=121,
        vision_start_token_id=122,
        vision_end_token_id=123,
    )
    return transformers.Qwen2VLForConditionalGeneration, config
