"""Parses and validates team files, recipes and options into frozen specs."""
