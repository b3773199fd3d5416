"""Checks the platform before a build, and removes what a build of the panel leaves behind."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Checkout(BuildHookInterface[Any]):
    """Keep a checkout clean: ``pip install .`` builds the panel with npm in the checkout itself."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Refuse a platform on which nb_agents cannot work.

        Raises:
            RuntimeError: The platform is Windows.
        """
        if sys.platform == "win32":
            raise RuntimeError(
                "nb_agents does not work on Windows. Install it in WSL "
                "(https://learn.microsoft.com/windows/wsl/install), and start JupyterLab there."
            )
        self._packages = Path(self.root, "js", "node_modules")
        # Those who develop need the packages again, and `make` may be installing them now.
        self._is_clean = version != "editable" and not self._packages.exists()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the npm packages that this build has installed."""
        if self._is_clean:
            shutil.rmtree(self._packages, ignore_errors=True)
