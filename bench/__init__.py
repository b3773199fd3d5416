"""Benchmarks: they print tables and assert nothing. `python -m bench [name ...]`."""
