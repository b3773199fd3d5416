"""Live runs: how a turn is executed, the handle of a run, and the registry of runs."""
