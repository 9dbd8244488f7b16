"""The two ends of a model as plain tables: an embedding and an output layer, drawn at random."""

from __future__ import annotations

import torch
from torch import Tensor


class TableEnds:
    """Ends without a model; writes down which rows of the output layer were read."""

    def __init__(
        self,
        vocab: int = 32,
        width: int = 24,
        embedding_width: int = 16,
        *,
        bias: bool = False,
        seed: int = 0,
        dtype_of_guesses: torch.dtype = torch.float32,
    ) -> None:
        self.dtype_of_guesses = dtype_of_guesses
        generator = torch.Generator().manual_seed(seed)
        self.vocab, self.width, self.embedding_width = vocab, width, embedding_width
        self.embedding = torch.randn((vocab, embedding_width), generator=generator)
        self.weight = torch.randn((vocab, width), generator=generator)
        self.bias = torch.randn(vocab, generator=generator) if bias else None
        self.read: list[int] = []

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding[tokens]

    def output_rows(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        self.read += tokens.tolist()
        return self.weight[tokens], None if self.bias is None else self.bias[tokens]
