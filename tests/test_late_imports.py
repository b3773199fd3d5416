"""Functions import our own modules only where importing them earlier would cost much time.

An import in a function hides a dependency, and a typing error in it shows up only when it runs. So
each module that has one is listed here with the reason. Counted is each import statement for a
module of nb_agents that is inside a function, those for type checkers excepted. The counts can
only be lowered.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

START = "`import nb_agents`, and the start of a Jupyter server, must take less than 0.1 s"
MCP = "the MCP SDK takes a second, and is an extra"
DASK = "distributed takes 0.6 s, and is an extra"
SDK = "pydantic-ai takes a second"
HTTPX = "httpx2 takes 0.1 s"
RECIPE = "a run without a recipe doesn't need the parsers of recipes"
SWEEP = "a list without sweeps doesn't need their cards"
DISPLAY = "only notebooks, or only terminals, need the module"

ALLOWED = {
    "nb_agents": (5, START),
    "nb_agents.extensions.external_agents.acp_runners": (1, "the protocol's library is an extra"),
    "nb_agents.extensions.external_agents.frameworks.function_agent": (1, SDK),
    "nb_agents.extensions.external_agents.team_server": (2, MCP),
    "nb_agents.extensions.external_agents.tool_server": (1, MCP),
    "nb_agents.extensions.recipes.recipe_kind": (9, RECIPE),
    "nb_agents.extensions.recipes.recipe_tool": (2, RECIPE),
    "nb_agents.extensions.sweeps.mapping": (1, DASK),
    "nb_agents.extensions.sweeps.sweep_handle": (1, DISPLAY),
    "nb_agents.extensions.sweeps.sweep_kind": (7, SWEEP),
    "nb_agents.jupyter.waiting": (1, DISPLAY),
    "nb_agents.launch.detach": (1, DASK),
    "nb_agents.models.backend": (1, HTTPX),
    "nb_agents.models.providers": (1, HTTPX),
    "nb_agents.server": (2, START),
    "nb_agents.server.handler": (4, START),
    "nb_agents.tools.mcp": (1, MCP),
    "nb_agents.tools.mcp_server": (5, MCP),
    "nb_agents.tools.mcp_stdio": (2, MCP),
    "nb_agents.tools.mcp_wire": (1, MCP),
}
"""How many late imports each module may have, and why it needs them."""

MOST = 49
"""The sum of all counts. It was 105 when the core and its extensions were separated."""

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def late_imports(source: str) -> int:
    """Return how many imports of nb_agents are in functions."""
    return sum(map(_is_ours, _in_functions(ast.parse(source), is_inside=False)))


def _in_functions(tree: ast.AST, *, is_inside: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and is_inside:
            yield node
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield from _in_functions(node, is_inside=is_inside or isinstance(node, _FUNCTIONS))


def _is_ours(found: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(found, ast.ImportFrom):
        names = [found.module or ""]
    else:
        names = [alias.name for alias in found.names]
    return any(name.partition(".")[0] == "nb_agents" for name in names)


def _counts() -> Counter[str]:
    counts: Counter[str] = Counter()
    for path in (ROOT / "nb_agents").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        counts[name] = late_imports(path.read_text("utf-8"))
    return +counts


def test_only_listed_modules_import_our_modules_in_functions() -> None:
    """If a count is too high, lower it; see `ALLOWED`."""
    assert _counts() == {name: count for name, (count, _) in ALLOWED.items()}


def test_number_of_late_imports_is_bounded() -> None:
    assert sum(count for count, _ in ALLOWED.values()) <= MOST


@pytest.mark.parametrize(
    "source, count",
    [
        ("import nb_agents.loop", 0),
        ("def f():\n    import json", 0),
        ("def f():\n    import nb_agents.loop", 1),
        ("async def f():\n    if x:\n        from nb_agents import loop, cancel", 1),
        ("class A:\n    def f(self):\n        from nb_agents.loop import run", 1),
        ("def f():\n    if TYPE_CHECKING:\n        from nb_agents.loop import run", 0),
    ],
)
def test_late_imports_are_counted(source: str, count: int) -> None:
    assert late_imports(source) == count


@pytest.mark.parametrize("name, most", [("nb_agents", 5), ("nb_agents.server", 6)])
def test_importing_the_package_imports_few_of_our_modules(name: str, most: int) -> None:
    code = f"import sys, {name}; print(len([m for m in sys.modules if m.startswith('nb_agents')]))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) <= most
