"""Builds the site: ``make docs`` writes it to ``build/docs``.

Each build generates the reference from the code (`docs.reference_pages`), the page of figures from
saved measurements (`docs.figure_pages`) and the notebooks' outputs (`docs.notebook_pages`), so no
page is older than what it describes. The build is strict: a broken link, a page that no index lists
and an unknown name are errors. It needs no network.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

import nb_agents  # noqa: E402
from docs import figure_pages, notebook_pages, reference_pages  # noqa: E402

notebook_pages.write(
    ROOT / "notebooks", ROOT / "nb_agents", ROOT / "build" / "notebooks", HERE / "notebooks"
)
reference_pages.write(HERE / "reference")
figure_pages.write(HERE / "bench", HERE / "explain")

project = "nb_agents"
author = "nb_agents contributors"
version = release = nb_agents.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["**/.ipynb_checkpoints", "**/.nb_agents"]
nitpicky = True
# Types in signatures: Python's and other libraries', whose pages a build without a network can't
# see, and ours that are not public.
nitpick_ignore_regex = [
    ("py:.*", r"(?!nb_agents\.).*"),
    (
        "py:.*",
        r"nb_agents\.(agents|cancel|config|events|extensions|launch|models|presentation|tools|turns"
        r"|verbs|view)\..*",
    ),
]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
default_role = "code"
# `--over` is an option, not an en dash.
smartquotes = False
# A cell can hold another language, as after %%writefile. A card's data is for our extension.
suppress_warnings = ["misc.highlighting_failure", "mystnb.unknown_mime_type"]

# A block without a language is a cell. Its text is a task, not Python.
highlight_language = "none"
# `docs.notebook_pages` has executed them.
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
