"""Whatever becomes a child of ours: commands, their confinement, their environment."""
