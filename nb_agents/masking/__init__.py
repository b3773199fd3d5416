"""Keeps secrets out of all that is written and shown: masks for texts, whole and in pieces."""

from nb_agents.masking.mask import Mask, MaskedStream, safe_errors

__all__ = ["Mask", "MaskedStream", "safe_errors"]
