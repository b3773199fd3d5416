"""Tests of nb_agents, and the harnesses that they share."""
