"""For nbval: notebooks run concurrently, each process with its own sessions.

Otherwise notebooks in the same directory would continue each other's sessions.
"""

import os
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import nbval.kernel
import pytest
from jupyter_client.manager import KernelManager

from tests import warm


def pytest_sessionstart(session: pytest.Session) -> None:
    place = tempfile.TemporaryDirectory(prefix="nb-notebooks-")
    session.config.add_cleanup(place.cleanup)
    os.environ["NB_AGENTS_SESSIONS"] = place.name
    os.environ["JUPYTER_PATH"] = warm.kernel_path(Path(place.name, "jupyter"))

    def without_ports(**options: Any) -> KernelManager:
        # Ports are looked for before a kernel takes them: by then they may be another process's.
        connection = f"{place.name}/{uuid4()}.json"
        return KernelManager(transport="ipc", connection_file=connection, **options)

    nbval.kernel.KernelManager = without_ports
