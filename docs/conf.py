"""Builds the site: ``make docs`` writes it to ``build/docs``.

The reference is written from the code as the build begins (`docs.reference_pages`), the page of
figures from what was kept of them (`docs.figure_pages`), and the notebooks are copied here: nothing
can be older than what it describes. Strict: a broken link, a page that no list names, and a name
that is not found each fail the build. It needs no network.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nbformat

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

import nb_agents  # noqa: E402
from docs import figure_pages, reference_pages  # noqa: E402


def _copy_notebooks(source: Path, target: Path) -> None:
    """Copy notebooks and pictures; a kernel would say that the cells are IPython's."""
    shutil.copytree(source / "images", target / "images", dirs_exist_ok=True)
    for path in source.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
        nbformat.write(notebook, target / path.name)


_copy_notebooks(ROOT / "notebooks", HERE / "notebooks")
reference_pages.write(HERE / "reference")
figure_pages.write(HERE / "bench", HERE / "explain")

project = "nb_agents"
author = "nb_agents contributors"
version = release = nb_agents.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "**/.ipynb_checkpoints", "**/.nb_agents"]
nitpicky = True
# Types in signatures: Python's and other libraries', whose pages a build without a network can't
# see, and ours that are not public.
nitpick_ignore_regex = [
    ("py:.*", r"(?!nb_agents\.).*"),
    ("py:.*", r"nb_agents\.(agents|cancel|config|events|launch|models|runs|tools|view)\..*"),
]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
default_role = "code"
# A cell may hold another language, as after %%writefile.
suppress_warnings = ["misc.highlighting_failure"]

# `make nb-test` executes them, in kernels of their own.
nb_execution_mode = "off"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "pydata_sphinx_theme"
html_title = "nb_agents"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "nb_agents"},
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
}
