"""Tests against live IPython kernels."""
