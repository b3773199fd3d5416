"""Access to files and directories that another process may change, or attack, at the same time."""
