"""The compiled entry points. Importing this compiles them, or loads them from numba's cache.

Never imported by ``import ngram_pool``: `ready.py` does so once the cache is known to be filled.
Kernels are private, take flat arrays and numbers only, check nothing, and release the GIL.
"""

from ngram_pool.kernels_common import _fill_slots
from ngram_pool.kernels_logits import _top_rows
from ngram_pool.kernels_products import _products
from ngram_pool.kernels_rows import _recycle
from ngram_pool.kernels_text import _extend, _reset
from ngram_pool.kernels_tree import _propose

__all__ = ["_extend", "_fill_slots", "_products", "_propose", "_recycle", "_reset", "_top_rows"]
