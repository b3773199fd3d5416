"""Runs the ``nb-agents`` command as ``python -m nb_agents.cli``."""

from nb_agents.cli import main

if __name__ == "__main__":
    main()
