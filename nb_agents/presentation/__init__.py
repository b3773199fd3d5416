"""Cards, panel states and text about turns and sweeps, shared by all user interfaces.

The package does not depend on a front end.
"""
