"""Tokenizers made in memory: one word an id, and one byte an id."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.helpers import VOCAB

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
)


def word_tokenizer(vocab: int = VOCAB) -> Any:
    """Return a tokenizer for which ``w17`` is the id 17."""
    words = {"<pad>": 0, "<s>": 1, "<unk>": 2} | {f"w{i}": i for i in range(3, vocab)}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", unk_token="<unk>"
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def byte_tokenizer() -> Any:
    """Return a byte-level tokenizer: ids 0 to 255 are bytes in the order of its alphabet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def letter_tokenizer(vocab: int = VOCAB) -> Any:
    """Return a tokenizer for which every id is one letter: ``a`` is 64."""
    letters = [chr(33 + i) if 33 + i < 127 else chr(0xC0 + i) for i in range(vocab)]
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend)
