"""The notebooks as pages of the site, executed, so that they show their outputs.

Executing them takes minutes, as the demo model writes at a readable speed. So several run at a
time, and ``build/notebooks`` caches them until a notebook or the package changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

__all__ = ["executed", "write"]

AT_A_TIME = 3
"""Notebooks that run at the same time. They mostly wait."""

CELL_TIMEOUT_S = 300
FIRST = "quickstart"
"""The notebook whose first card is on the index page."""

_SHOWN_FOLDER = "/home/ann/notebooks"
"""The directory that outputs name instead of the temporary one."""


def write(sources: Path, package: Path, kept: Path, target: Path) -> None:
    """Write each notebook with its outputs, and copy the pictures.

    Args:
        sources: The directory of the notebooks.
        package: The package that they use. Its code and a notebook's text are the cache key.
        kept: The directory that caches executed notebooks.
        target: The directory of the pages.
    """
    shutil.copytree(sources / "images", target / "images", dirs_exist_ok=True)
    code = _digest(*sorted(package.rglob("*.py")))
    paths = sorted(sources.glob("*.ipynb"))
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        texts = list(pool.map(lambda path: _cached(path, code, kept), paths))
    for path, text in zip(paths, texts, strict=True):
        (target / path.name).write_text(text, "utf-8")
        if path.stem == FIRST:
            (target / "card.html").write_text(_first_card(text), "utf-8")


def executed(path: Path) -> str:
    """Execute a notebook in a directory of its own and return it, with outputs, as JSON.

    Args:
        path: The notebook. A cell that fails, or uses a magic wrongly, raises an error.
    """
    notebook = nbformat.read(path, as_version=4)
    # Without the lexer, the site would report magics as syntax errors.
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    with tempfile.TemporaryDirectory(prefix="nb-page-") as name:
        folder, own = Path(name, "notebooks"), Path(name, "own")
        folder.mkdir()
        own.mkdir()
        client = NotebookClient(
            notebook,
            # A socket, as a free port may be another process's before the kernel takes it.
            config=Config(
                KernelManager={"transport": "ipc", "connection_file": str(own / "kernel.json")}
            ),
            timeout=CELL_TIMEOUT_S,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
            extra_arguments=["--log-level=ERROR"],
        )
        asyncio.run(client.async_execute(env=_environment(own)))
        return nbformat.writes(notebook).replace(json.dumps(str(folder))[1:-1], _SHOWN_FOLDER)


def _first_card(text: str) -> str:
    """Return the HTML of the first card in an executed notebook, as a page includes it."""
    outputs = [o for cell in json.loads(text)["cells"] for o in cell.get("outputs", ())]
    card = next(o["data"]["text/html"] for o in outputs if "text/html" in o.get("data", {}))
    html = card if isinstance(card, str) else "".join(card)
    return f'<div class="cell_output docutils"><div class="text_html">{html}</div></div>\n'


def _environment(own: Path) -> Mapping[str, str]:
    """Return a kernel's environment: no settings, keys or live runs of the user."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("NB_AGENTS_")}
    return {**kept, "XDG_STATE_HOME": str(own), "IPYTHONDIR": str(own)}


def _cached(path: Path, code: str, kept: Path) -> str:
    file = kept / f"{path.stem}-{_digest(path)[:12]}-{code[:12]}.ipynb"
    if not file.exists():
        text = executed(path)
        for older in kept.glob(f"{path.stem}-????????????-????????????.ipynb"):
            older.unlink()
        kept.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    return file.read_text("utf-8")


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
