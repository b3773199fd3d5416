"""Parsing: files and cells become frozen specs here and nowhere else."""
