"""Builds the site of the generated reference, without the pages that take minutes."""

from __future__ import annotations

import runpy
import shutil
import warnings
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

__all__ = ["build_reference"]

_DOCS = ROOT / "docs"
_OTHER_PAGES = ("massgen-keys", "notebooks/recipes")
"""Pages that the reference links to."""


def build_reference(folder: Path) -> Path:
    """Build the reference with the site's own configuration.

    Args:
        folder: An empty directory.

    Returns:
        The directory of the HTML pages.
    """
    from sphinx.application import Sphinx

    from docs import reference_pages

    source, site = folder / "source", folder / "site"
    (source / "reference").mkdir(parents=True)
    reference_pages.write(source / "reference")
    (source / "reference" / "python.md").unlink()  # takes most of the time
    shutil.copytree(_DOCS / "_static", source / "_static")
    for name in _OTHER_PAGES:
        (source / name).parent.mkdir(exist_ok=True)
        (source / f"{name}.md").write_text(f"# {name}\n", "utf-8")
    (source / "index.md").write_text("# Site\n", "utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Sphinx about its extensions
        trees, settings = folder / "doctrees", _settings()
        Sphinx(source, None, site, trees, "html", settings, status=None, warning=None).build()
    return site


def _settings() -> dict[str, object]:
    """Return the settings of `docs/conf.py`, without writing the pages that it generates."""
    from docs import figure_pages, notebook_pages, reference_pages

    with pytest.MonkeyPatch.context() as patch:
        for pages in (figure_pages, notebook_pages, reference_pages):
            patch.setattr(pages, "write", lambda *_: None)
        values = runpy.run_path(str(_DOCS / "conf.py"))
    names = ("extensions", "html_", "myst_", "nb_exec", "default_role", "smartquotes", "suppress_")
    return {name: value for name, value in values.items() if name.startswith(names)}
