"""Exceptions of the package.

::

    Exception
    └── PoolError
        └── PoolFileError (also ValueError)

A wrong argument raises a plain ``ValueError`` that names what was expected and what came.
"""

__all__ = ["PoolError", "PoolFileError"]


class PoolError(Exception):
    """Base of every exception that is special to this package."""


class PoolFileError(PoolError, ValueError):
    """A file is not a pool, or is a damaged one; loading changed nothing.

    Examples
    --------
    >>> import ngram_pool
    >>> try:
    ...     ngram_pool.DictPool.load("no_such_file.pool")
    ... except ngram_pool.PoolFileError as error:
    ...     print(error)
    Cannot read 'no_such_file.pool': No such file or directory.
    """
