"""Agents that are programs of the user's: functions, and objects of other frameworks."""
