"""Many tasks at once: one directory, one table, one stop. `nb_agents.map` starts a sweep."""
