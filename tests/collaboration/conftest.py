"""Tests with jupyter-collaboration, which run only if it is installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("jupyter_server_ydoc") else ["test_*.py"]
