"""Agents: the runner of one agent, the state machine of answers and votes, and the team driver."""
