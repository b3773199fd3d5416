"""Safe access to files that another process, possibly an attacker, may change at any time."""
