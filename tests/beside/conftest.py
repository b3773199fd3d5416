"""Tests with Jupyter AI, which run only if it is installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("jupyter_ai_acp_client") else ["test_*.py"]
