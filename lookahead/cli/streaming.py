"""Token ids coming out of ``generate``, turned into text piece by piece, with the time of each.

A streamer in the library's sense (``put`` and ``end``), without importing the library.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: What a tokenizer gives for bytes that are not a whole character yet.
INCOMPLETE = "\ufffd"


class TextStream:
    """Collects new ids, the moment of each, and hands on text as soon as it is certain.

    Parameters
    ----------
    tokenizer : tokenizer or None
        ``None`` collects ids and times only.
    on_text : callable, optional
        Called with each new piece of text.
    """

    def __init__(self, tokenizer: Any = None, on_text: Callable[[str], None] | None = None) -> None:
        self.new_ids: list[int] = []
        self.times_s: list[float] = []
        self._tokenizer = tokenizer
        self._on_text = on_text
        self._is_prompt_next = True
        # Text before _shown is out. Decoding starts a little earlier, at _start, because some
        # tokenizers drop the space before the first token that they are given.
        self._start = 0
        self._shown = 0

    def put(self, value: Any) -> None:
        """Take new ids; the first call brings the prompt and is passed over."""
        if self._is_prompt_next:
            self._is_prompt_next = False
            return
        ids = value.reshape(-1).tolist()
        self.new_ids.extend(ids)
        self.times_s.extend([time.perf_counter()] * len(ids))
        self._show(is_last=False)

    def end(self) -> None:
        """Show what was held back."""
        self._show(is_last=True)

    def _show(self, *, is_last: bool) -> None:
        if self._on_text is None or self._tokenizer is None:
            return
        before = self._decode(self.new_ids[self._start : self._shown])
        text = self._decode(self.new_ids[self._start :])
        if text.endswith(INCOMPLETE) and not is_last:
            return
        if len(text) > len(before):
            # First, so that a Ctrl-C while the text is printed does not print it twice.
            self._start, self._shown = self._shown, len(self.new_ids)
            self._on_text(text[len(before) :])

    def _decode(self, ids: list[int]) -> str:
        if not ids:
            return ""
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text
