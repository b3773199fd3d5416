"""Benchmarks: they print tables and assert nothing. `python -m tests.bench [name ...]`."""
