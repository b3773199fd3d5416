"""Libraries that a plain ``pip install nb_agents`` leaves out, and the extras that install them."""

from importlib.util import find_spec

EXTRAS = {
    "acp": ("acp", "mcp", "uvicorn"),
    "anthropic": ("anthropic",),
    "google": ("google.genai",),
    "mcp": ("mcp", "uvicorn"),
    "search": ("ddgs",),
}
"""The modules that each extra installs."""


def missing_extra(extra: str) -> str:
    """Return how to install an extra whose libraries are missing, or "" if all are installed.

    Args:
        extra: The name of an extra, or "" for none.

    Returns:
        A sentence with the command line.
    """
    if all(_is_installed(module) for module in EXTRAS.get(extra, ())):
        return ""
    return f"Install it: `pip install 'nb_agents[{extra}]'`."


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that contains the module is missing
        return False
