"""Every registered causal language model, built tiny, and the sweep over all of them."""
