"""Agents that are programs, by the Agent Client Protocol over stdin and stdout."""
