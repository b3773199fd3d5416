"""Child processes: running commands, their sandbox and their environment."""
