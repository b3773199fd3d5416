"""Agents that users write in Python: functions, and agents of other frameworks."""
