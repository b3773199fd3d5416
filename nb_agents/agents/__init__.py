"""Agents: one agent's turn, the pure machine of answers and votes, and the team's driver."""
