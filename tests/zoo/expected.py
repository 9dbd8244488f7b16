"""How the families that are named in the documentation run: one word each.

``tree``: drafts are verified as trees. ``chain``: as chains. ``plain``: not accelerated.
"""

from __future__ import annotations

from lookahead.hf.compat import COUNTS_SLOTS, KNOWS_STATES

#: By name, in the newest release of transformers; see :mod:`tests.zoo.sweep`.
EXPECTED = {
    "llama": "tree",
    "mistral": "tree",
    "mixtral": "tree",
    "qwen2": "tree",
    "qwen2_moe": "tree",
    "qwen3": "tree",
    "qwen3_moe": "tree",
    "gemma": "tree",
    "gemma2": "tree",
    "gemma3_text": "tree",
    "gemma3": "tree",  # sees, and is given text alone
    "roberta": "tree",  # left to itself, it counts positions from behind its padding id
    "dory": "tree",  # runs layers several times, on copies of their cache
    "gemma3n_text:shared": "tree",
    "phi": "tree",
    "phi3": "tree",
    "gpt2": "tree",
    "gptj": "tree",
    "gpt_neox": "tree",
    "opt": "tree",
    "bloom": "tree",
    "mpt": "tree",
    "falcon": "tree",
    "starcoder2": "tree",
    "stablelm": "tree",
    "cohere2": "tree",
    "olmo2": "tree",
    "granite": "tree",
    "deepseek_v3": "tree",
    "gpt_oss": "tree",
    "smollm3": "tree",
    "mamba2": "chain",
    "jamba": "plain",
    "bamba": "chain",
    "lfm2": "chain",
    "qwen3_next": "chain",
    "recurrent_gemma": "plain",
    "musicgen_melody": "plain",
    "t5:encoder": "tree",
    "bart:encoder": "tree",
    "llava:image": "tree",
    "qwen2_vl:image": "tree",
}

#: What is otherwise before 5.13: states of recurrent layers cannot be taken back.
_BEFORE_STATES = dict.fromkeys(("mamba2", "bamba", "lfm2", "qwen3_next"), "plain")

#: What is otherwise in 4.57, the oldest.
_OLDEST = {
    "roberta": "chain",  # makes its masks in functions of a module
    "gemma3n_text:shared": "plain",
    "qwen2_vl:image": "plain",  # works out the positions of images by itself
}

#: By name, in the release that is installed.
EXPECTED_HERE = EXPECTED | ({} if KNOWS_STATES else _BEFORE_STATES)
EXPECTED_HERE |= _OLDEST if COUNTS_SLOTS else {}
