"""Beginning runs: loading what they are given, here or in another process."""
