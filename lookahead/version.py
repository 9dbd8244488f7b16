"""The version, where build tools find it without importing anything heavy."""

__version__ = "0.1.0"
