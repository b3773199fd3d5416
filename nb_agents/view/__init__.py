"""The one state of a turn, folded from its events, and what is derived from it."""
