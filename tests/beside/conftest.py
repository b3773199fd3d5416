"""Tests that run where Jupyter AI is installed, by ``make beside``; elsewhere there are none."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("jupyter_ai_acp_client") else ["test_*.py"]
