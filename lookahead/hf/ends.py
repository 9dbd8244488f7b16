"""The two ends of a model, for drafters that read hidden states: embedding and output layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lookahead.drafters.products import dtype_of_guesses
from lookahead.hf.compat import vocab_size
from lookahead.hf.layers import is_plain_matrix

__all__ = ["HFEnds", "ends_of"]


class HFEnds:
    """Embedding and output layer of one model, read and never changed.

    Parameters
    ----------
    model : PreTrainedModel
        Its output layer has a weight that can be read row by row.
    """

    def __init__(self, model: Any) -> None:
        self._embedding = model.get_input_embeddings()
        self._output = model.get_output_embeddings()
        self.vocab = min(vocab_size(model), int(self._output.weight.shape[0]))
        self.width = int(self._output.weight.shape[1])
        self.embedding_width = int(self._embedding.weight.shape[1])

    @property
    def dtype_of_guesses(self) -> torch.dtype:
        """In which guesses are computed fastest: they need no more than 16 bits."""
        return dtype_of_guesses(self._output.weight.device)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return embeddings, int64, [rows] -> float, [rows, width of the embedding]."""
        with torch.no_grad():
            embedded: Tensor = self._embedding(tokens.to(self._embedding.weight.device))
        return embedded

    def output_rows(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return rows of the output layer, float, [tokens, width], and their bias, [tokens]."""
        with torch.no_grad():
            weight, bias = self._output.weight, getattr(self._output, "bias", None)
            rows = tokens.to(weight.device)
            return weight[rows].float(), None if bias is None else bias[rows].float()


def ends_of(model: Any) -> HFEnds | None:
    """Return the ends of a model, or None where its layers are not plain matrices, and here."""
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    if type(output) is not nn.Linear or not is_plain_matrix(output):
        return None
    weight: Any = getattr(embedding, "weight", None)
    # Of what is off-loaded nothing is here but its size; others have rules of their own.
    if type(weight) not in (Tensor, nn.Parameter) or weight.is_meta:
        return None
    return HFEnds(model)
