"""What agents can do besides speaking."""
