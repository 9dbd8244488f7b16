"""What text has been seen, and what may come next: draft trees without a model.

A pool belongs to one sequence. It holds the text in a suffix automaton with next-token counts, and
the target's own most likely tokens after pairs of tokens it has read. Asked, it grows a draft tree
best first, from its own two sources and from the trees that other drafters hand in; how far each
source can be trusted is counted in a `Calibration` that pools share. Kernels are compiled aside
(`warm_up`); until then a plain Python twin serves, with the same answers.
"""

from ngram_pool.base import Pool, PoolStats
from ngram_pool.calibration import Calibration
from ngram_pool.errors import PoolError, PoolFileError
from ngram_pool.pool import NgramPool
from ngram_pool.products import products
from ngram_pool.proposal import Offer, Proposal
from ngram_pool.ready import kernels_ready, new_pool, warm_up
from ngram_pool.reference import DictPool
from ngram_pool.top import top_rows

__all__ = [
    "Calibration",
    "DictPool",
    "NgramPool",
    "Offer",
    "Pool",
    "PoolError",
    "PoolFileError",
    "PoolStats",
    "Proposal",
    "kernels_ready",
    "new_pool",
    "products",
    "top_rows",
    "warm_up",
]
