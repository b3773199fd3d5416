"""Scenario S in the words of one library each; every module is run in a process of its own."""
