"""Recipes: workflows of steps in YAML, a documented superset of Amplifier's language."""
