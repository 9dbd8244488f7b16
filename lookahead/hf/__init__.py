"""The only code that imports transformers: cache, masks, target, and the way into ``generate``."""
