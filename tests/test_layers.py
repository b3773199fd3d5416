"""The layers of the package: imports go only downwards, and importing is cheap."""

import ast
import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_kit import FOR_OTHERS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "nb_agents"

FLOORS = {
    "callbacks": 0,
    "context": 0,
    "disk": 0,
    "errors": 0,
    "imports": 0,
    "json_text": 0,
    "nouns": 0,
    "plugins": 0,
    "routes": 0,
    "signatures": 0,
    "unicode": 0,
    "cancel": 1,
    "config": 1,
    "events": 2,
    "masking": 2,
    "models": 2,
    "process": 2,
    "service_loops": 2,
    "view": 3,
    "loop": 3,
    "tools": 3,
    "options": 4,
    "session": 4,
    "snapshots": 4,
    "agents": 4,
    "recipes": 2,
    "turns": 6,
    "testing": 6,
    "launch": 7,
    "presentation": 9,
    "verbs": 10,
    "jupyter": 11,
    "cli": 11,
    "client": 11,
    "server": 11,
    "": 12,
    "extend": 12,
    "extensions": 13,
}
"""Each part of the package and its floor; "" is the package's own names."""

NEIGHBOURS = {
    ("callbacks", "errors"),
    ("errors", "nouns"),
    ("errors", "unicode"),
    ("json_text", "unicode"),
    ("plugins", "errors"),
    ("models", "events"),
    ("agents", "session"),
    ("snapshots", "session"),
    ("jupyter", "cli"),  # IPython in a terminal shows a run as the commands there do
}
"""(importer, imported) on one floor that are allowed, one way only."""

USES_PYDANTIC_AI = (
    "nb_agents.extensions.external_agents.acp.",
    "nb_agents.agents.context_folding",
    "nb_agents.agents.folded_history",
    "nb_agents.agents.message_json",
    "nb_agents.agents.model_runner",
    "nb_agents.extensions.external_agents.frameworks.",
    "nb_agents.extensions.replays.",
    "nb_agents.agents.replies",
    "nb_agents.agents.stream_buffer",
    "nb_agents.models.",
    "nb_agents.testing",
    "nb_agents.tools.base",
)
"""The runners that use it, the models, and what makes a function's schema; no other part."""

SERVER_ONLY = {"jupyter_server", "tornado"}
NOTEBOOK_ONLY = {"IPython", "anywidget", "comm", "ipykernel", "ipywidgets", "traitlets"}


class Import(NamedTuple):
    importer: str
    line: int
    target: str


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def _is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _statements(tree: ast.AST, for_types: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Give the imports that run, those inside functions too; and those for types alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif for_types or not _is_for_types_only(node):
            yield from _statements(node, for_types)


def _docstrings(tree: ast.AST) -> set[ast.AST]:
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def _loaded_by_name(module: str, tree: ast.AST) -> Iterator[Import]:
    """Give what `import_module` and `__import__` load, and our modules in strings.

    A string names one as "module", "module:name" or "... -m module ..."; a docstring doesn't, nor
    does the package's name alone, as the one of the logger.
    """
    prose = _docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            match node.args:
                case [ast.Constant(value=str(name)), *_]:
                    yield Import(module, node.lineno, name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            named = [node.value.partition(":")[0], *re.findall(r"-m\s+([\w.]+)", node.value)]
            ours = (each for each in named if each in MODULES and each != PACKAGE.name)
            yield from (Import(module, node.lineno, each) for each in ours)


def _called(call: ast.Call) -> str:
    """Return the last name of what is called; "" of what has none."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def imports_of(module: str, source: str, *, for_types: bool = False) -> list[Import]:
    tree = ast.parse(source)
    found = list(_loaded_by_name(module, tree))
    for node in _statements(tree, for_types):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{module}:{node.lineno}: import by the full name"
            base = node.module or ""
            inside = [f"{base}.{alias.name}" for alias in node.names]
            targets = [name if name in MODULES else base for name in inside]
        found += [Import(module, node.lineno, target) for target in dict.fromkeys(targets)]
    return found


@cache
def all_imports(*, for_types: bool = False) -> list[Import]:
    sources = {module: path.read_text("utf-8") for module, path in MODULES.items()}
    return [i for m, s in sources.items() for i in imports_of(m, s, for_types=for_types)]


def _part(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


def _goes_down(found: Import) -> bool:
    importer, imported = _part(found.importer), _part(found.target)
    return (
        FLOORS[imported] < FLOORS[importer]
        or importer == imported
        or (importer, imported) in NEIGHBOURS
    )


def breaches(found: list[Import]) -> list[str]:
    ours = [i for i in found if i.target.split(".")[0] == "nb_agents"]
    up = [i for i in ours if not _goes_down(i)]
    notebook = [
        i
        for i in found
        if i.target.split(".")[0] in NOTEBOOK_ONLY and _part(i.importer) != "jupyter"
    ]
    server = [
        i for i in found if i.target.split(".")[0] in SERVER_ONLY and _part(i.importer) != "server"
    ]
    return [f"{i.importer}:{i.line} imports {i.target}" for i in up + notebook + server]


def test_every_part_of_the_package_has_a_floor() -> None:
    assert {_part(module) for module in MODULES} <= FLOORS.keys()


def test_imports_go_strictly_down_and_notebook_libraries_stay_in_jupyter() -> None:
    assert breaches(all_imports()) == []


def extension_of(module: str) -> str:
    """Return the extension that a module belongs to; "" for the core."""
    return module.split(".")[2] if module.startswith("nb_agents.extensions.") else ""


def imports_of_extensions(found: list[Import]) -> set[tuple[str, str]]:
    """Return (module, extension) for each module that imports an extension it is not part of."""
    pairs = {(each.importer, extension_of(each.target)) for each in found}
    return {(module, name) for module, name in pairs if name not in ("", extension_of(module))}


def test_core_never_imports_an_extension() -> None:
    """Nor does an extension import another one."""
    assert imports_of_extensions(all_imports()) == set()


@pytest.mark.parametrize(
    "module, source",
    [
        ("nb_agents.turns.handle", "def f():\n    from nb_agents.extensions.recipes import plan"),
        ("nb_agents.turns.handle", "import nb_agents.extensions.sweeps.manifest"),
        ("nb_agents.turns.handle", "MAKE = 'nb_agents.extensions.recipes.plan:Plan'"),
        ("nb_agents.turns.handle", "from nb_agents.extensions.acme.verbs import SHOW"),
        ("nb_agents.extensions.sweeps.sweep", "from nb_agents.extensions.recipes import plan"),
    ],
)
def test_an_import_of_an_extension_is_detected(module: str, source: str) -> None:
    assert imports_of_extensions(imports_of(module, source))


@pytest.mark.parametrize(
    "module, source",
    [
        ("nb_agents.extensions.recipes.executor", "from nb_agents.extensions.recipes import plan"),
        ("nb_agents.extensions.acme", "from nb_agents.extensions.acme.verbs import SHOW"),
        ("nb_agents.extensions.recipes.executor", "from nb_agents.turns import turn"),
    ],
)
def test_an_extension_imports_itself_and_the_core(module: str, source: str) -> None:
    assert imports_of_extensions(imports_of(module, source)) == set()


def test_pydantic_ai_types_are_used_only_by_their_runners() -> None:
    strays = {
        each.importer
        for each in all_imports(for_types=True)
        if each.target.partition(".")[0] == "pydantic_ai"
        and not f"{each.importer}.".startswith(USES_PYDANTIC_AI)
    }
    assert strays == set()


@pytest.mark.parametrize(
    "module, source",
    [
        ("nb_agents.errors", "from nb_agents.cancel import checkpoint"),
        ("nb_agents.session.views", "from nb_agents.agents.team_driver import Team"),
        ("nb_agents.session.views", "from nb_agents.agents import team_driver"),
        ("nb_agents.events", "def f():\n    import nb_agents.models.backend"),
        ("nb_agents.turns.handle", "from nb_agents import jupyter"),
        ("nb_agents.turns.handle", "import nb_agents"),
        ("nb_agents.turns.handle", "import IPython.display"),
        ("nb_agents.jupyter.panel", "from jupyter_server.base.handlers import APIHandler"),
        ("nb_agents.server.handler", "import IPython"),
        ("nb_agents.view.run_view", "try:\n    import ipykernel\nexcept ImportError:\n    pass"),
        ("nb_agents.view.run_view", "import_module('ipykernel')"),
        ("nb_agents.view.run_view", "importlib.import_module('nb_agents.extensions.sweeps.sweep')"),
        ("nb_agents.view.run_view", "__import__('nb_agents.jupyter')"),
        ("nb_agents.view.run_view", "ENTRY = 'nb_agents.server.handler:create'"),
        ("nb_agents.view.run_view", "start(['python', '-m', 'nb_agents.cli'])"),
        ("nb_agents.view.run_view", "start(f'{python} -m nb_agents.cli list')"),
    ],
)
def test_violations_are_detected(module: str, source: str) -> None:
    assert breaches(imports_of(module, source))


def test_imports_for_types_alone_are_free() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import IPython"
    assert breaches(imports_of("nb_agents", source)) == []


def test_no_import_cycles_even_for_types() -> None:
    graph: dict[str, set[str]] = {}
    for found in all_imports(for_types=True):
        if found.target in MODULES and found.importer != found.target:
            graph.setdefault(found.importer, set()).add(found.target)
    TopologicalSorter(graph).prepare()


def test_no_two_files_have_the_same_name() -> None:
    names = [path.name for path in MODULES.values() if path.name != "__init__.py"]
    assert [name for name in set(names) if names.count(name) > 1] == []


def test_no_two_classes_have_the_same_name() -> None:
    classes: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(module)
    assert {name: found for name, found in classes.items() if len(found) > 1} == {}


def test_session_does_not_import_agents() -> None:
    below = [i for i in all_imports() if _part(i.importer) in ("session", "tools", "view")]
    assert [i for i in below if _part(i.target) == "agents"] == []


def test_importing_the_package_loads_no_model_sdk_and_no_notebook() -> None:
    heavy = (
        "openai",
        "anthropic",
        "google.genai",
        "pydantic_ai",
        "httpx2",
        "mcp",
        "IPython",
        "ipykernel",
    )
    code = f"import sys, nb_agents; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_team_run_does_not_import_recipes_or_sweeps() -> None:
    code = (
        "import sys, nb_agents\n"
        "from nb_agents.testing import Answer, ScriptedModel, scripted_team\n"
        "nb_agents.start('Why?', scripted_team(a=ScriptedModel(Answer('So.')))).wait()\n"
        "rooms = ('nb_agents.extensions.recipes.', 'nb_agents.extensions.sweeps.')\n"
        "print([m for m in sys.modules if m.startswith(rooms)])"
    )
    with tempfile.TemporaryDirectory() as place:
        env = {**os.environ, "NB_AGENTS_SESSIONS": place}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True
        )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_public_names_are_listed_in_order_and_exist() -> None:
    for name in sorted({*MODULES} - FOR_OTHERS):
        module = importlib.import_module(name)
        names = getattr(module, "__all__", [])
        assert list(names) == sorted(set(names)), name
        assert [n for n in names if not hasattr(module, n)] == [], name
