"""``python -m nb_agents.cli`` is ``nb-agents``."""

from nb_agents.cli import main

if __name__ == "__main__":
    main()
