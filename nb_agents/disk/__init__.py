"""Files and directories that somebody hostile may change meanwhile."""
