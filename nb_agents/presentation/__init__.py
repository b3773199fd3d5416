"""What the doors share: how turns and sweeps look, and what is typed about them.

It knows no front end.
"""
