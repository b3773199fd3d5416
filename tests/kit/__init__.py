"""Internal names of nb_agents that tests use, by topic.

A test imports internal names from here. Only the unit test of a module, `tests/**/test_NAME.py` for
`nb_agents/**/NAME.py`, imports them from the module itself. So when a module moves, only the kit
and that unit test change. `tests/test_kit.py` checks this, and that each name here is used.
"""
