"""Live executions: the background loop, the handle of a run, and the registry of runs."""
