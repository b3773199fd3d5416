"""Stored contents of workspaces and user files, and how a rewind restores them."""
