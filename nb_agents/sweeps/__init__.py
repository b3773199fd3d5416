"""Sweeps: a run for each row of a table, in one directory; `nb_agents.map` starts one."""
