"""The built-in extensions of nb_agents, each in its own package.

Nothing else in nb_agents imports them. `nb_agents.plugins` finds each sub-package through its
``EXTENSION``, so nb_agents also works if a package is removed.
"""
