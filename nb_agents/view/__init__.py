"""The state of a turn, folded from its events, and values derived from it."""
