"""Starts runs: loads their team, session and recipe, in this process or another."""
