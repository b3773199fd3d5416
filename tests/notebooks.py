"""For nbval: the sessions of each process are its own, so that notebooks run two at a time.

Notebooks go on in the session used last, and those of one folder would share it.
"""

import os
import tempfile

import pytest


def pytest_sessionstart(session: pytest.Session) -> None:
    place = tempfile.TemporaryDirectory(prefix="nb-notebooks-")
    session.config.add_cleanup(place.cleanup)
    os.environ["NB_AGENTS_SESSIONS"] = place.name
