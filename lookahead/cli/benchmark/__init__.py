"""The parts behind ``lookahead bench``: prompts, arms, meters, the interleaved runs, the report."""
