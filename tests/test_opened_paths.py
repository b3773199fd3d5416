"""Files that agents can write are never opened, created or examined by path.

A process in a sandbox can put a link or a pipe anywhere in a directory that it may write: in its
home, its workspace, the copies in it, its temporary directory, and the user's files that it was
given. The kernel reaches what is there through `nb_agents.disk` alone. Whatever else takes a path
is listed here with the directory that it is for, so that new code has to say which one that is.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Literal

import pytest

PACKAGE = Path(__file__).parent.parent / "nb_agents"

LOOKING = {
    "": frozenset(
        "exists glob is_dir is_file is_symlink iterdir lstat readlink rglob samefile stat".split()
    ),
    "os": frozenset("access listdir lstat readlink scandir stat walk".split()),
    "os.path": frozenset("exists getsize isdir isfile islink lexists".split()),
}
"""Methods of paths, and functions of a module, that look at what is there, without opening it."""
OPENING = {
    "": frozenset(
        "chmod hardlink_to mkdir read_bytes read_text rename rmdir symlink_to touch unlink "
        "write_bytes write_text".split()
    ),
    "os": frozenset(
        "chmod link makedirs mkdir open remove rename replace rmdir symlink truncate unlink "
        "utime".split()
    ),
    "os.path": frozenset[str](),
}
"""Those that open, create or change it; `open` and `replace` of paths are told by their use."""
OTHERS = frozenset(
    "sqlite3.connect tempfile.mkdtemp TemporaryDirectory NamedTemporaryFile ZipFile "
    "zipfile.ZipFile tarfile.open make_folder open_private private_lock write_private".split()
)
SAFE = frozenset({"shutil.which", "shutil.ignore_patterns", "shutil.rmtree"})
"""`rmtree` follows no link, and refuses a directory that became one."""
OPENED = frozenset(
    "archive directory entry folder opened run_tools sandbox self self._run_tools session tools"
    " turn".split()
)
"""What has a method `open` and is no path."""

MAY_OPEN = {
    "the session root and what is in a session beside homes and workspaces": (
        "extensions.notebook_cells.cell_images:_store",
        "extensions.notebook_cells.cell_tools:NotebookTools._write_patch",
        "extensions.notebook_cells.late_events:add_late_event",
        "extensions.recipes.recipe_work:keep_recipe",
        "session.commands",
        "session.history:_repair",
        "session.journal",
        "session.layout",
        "session.manage",
        "snapshots.user_files:UserFiles._write_record",
        "snapshots.user_files:UserFiles.record_start",
        "snapshots.user_files:UserFiles.leftover_changes",
        "snapshots.user_files:_events_of",
        "snapshots.user_file_restore:write_patches",
        "snapshots.objects:ObjectStore._folder",
        "snapshots.objects:ObjectStore.write_large_blob",
        "snapshots.objects:ObjectStore.write_object",
        "snapshots.objects:ObjectStore.fetch",
        "session.views",
        "extensions.sweeps.forks",
        "extensions.sweeps.manifest",
        "launch.quota_waits:resume_due_turns",
        "tools.offer",
        "turns.hiding:_DebugLog._open",
        "turns.recorder",
    ),
    "a workspace that no agent has yet": (
        "extensions.replays.replaying:_write_turns",
        "launch.here:_start",
        "launch.here:_fill_workspaces",
        "snapshots.checkout:_checkout_file",
        "snapshots.checkout:checkout",
        "snapshots.checkout:_take_large",
    ),
    "the directory of a workspace itself, which its sandbox can't replace": (
        "process.special_bits:drop_special_bits",
        "snapshots.working_tree:walk",
        "tools.workspace:Workspace._own_root",
    ),
    "an open descriptor": (
        "process.command:_pipe",
        "process.special_bits:_set_mode",
        "process.supervisor:_Order.__init__",
        "session.copying:_fill",
    ),
    "a copy whose place was looked at before any of its agent's processes runs": (
        "process.git:_remove",
    ),
    "the session's git repository, which agents can't write": (
        "process.git:Repository._commit",
        "process.git:Repository._fits",
        "process.git:Repository._list_files",
        "process.git:Repository._make",
        "process.git:Repository.write_patch",
    ),
    "a temporary directory before any process gets it, and its lock, which none gets": (
        "launch.team_report",
        "process.environment:ScratchFolder.__init__",
        "process.environment:_lock_of",
        "server.session_handlers:export_session",
    ),
    "the user's own choice of a file or directory": (
        "cli.beginning",
        "config.document",
        "config.external_agent_keys",
        "extensions.notebook_cells.apply_verb",
        "extensions.replays.pytest_plugin",
        "extensions.replays.recording_file",
        "launch.stream_recording",
        "extensions.external_agents.program_types",
        "extensions.recipes.recipe_work:RecipeWork._project",
        "launch.once",
        "session.archive:verify_archive",
        "verbs.on_sessions:_write_page",
        "models.backend",
        "extensions.sweeps.source",
        "tools.data_store",
    ),
    "the system": (
        "cli.printing",
        "launch.environment_report",
        "launch.host",
        "process.command:_start",
        "process.readonly_devices",
        "process.supervisor:_descendants",
        "process.supervisor:_sum_kb",
        "process.supervisor:_system_task_count",
        "process.supervisor:_thread_counts",
    ),
    "this user's own directories, outside of any session": (
        "cli.quota_timer",
        "config.massgen_keys",
        "launch.cluster",
        "launch.tickets",
        "session.ownership",
        "turns.day_budget",
        "turns.ledger_prune:_remove",  # or in a session root
        "turns.ledger",  # or in a session root, next to the sessions
        "turns.live_turns",
    ),
}
"""By the directory that it is for: modules, or functions, that open, create or change by a path."""

MAY_LOOK = {
    "the session root and what is in a session beside homes and workspaces": (
        "jupyter.dead_turns",
        "jupyter.in_place",
        "launch.file_blame:_turn_of",
        "launch.here:launch",
        "launch.past_runs",
        "launch.trust:_settings_of_programs",
        "extensions.recipes.recipe_tool:RecipeTool._new_row",
        "server.feeds",
        "server.places:_is_turn",
        "extensions.sweeps.sweep_feed",
        "session.files",
        "session.history:is_up_to_date",
        "snapshots.quota",
        "session.history:load_turn",
        "snapshots.user_files:UserFiles.delete_copies",
        "extensions.sweeps.sweep_file",
        "session.prune:_sizes",
        "extensions.sweeps.sweep_reader",
        "turns.handle:check_turn",
        "turns.ledger_prune:_has_session",
        "verbs.on_sessions",
        "verbs.on_turns",
    ),
    "the directory of a workspace itself, which its sandbox can't replace": (
        "process.command:_check_directory",
        "extensions.recipes.command_runner:CommandRunner._directory",
        "session.copying:copy_workspaces",
        "session.history:_folders",
        "session.history:_is_folder",
    ),
    "an open descriptor": ("process.special_bits:_search", "snapshots.working_tree:read_statuses"),
    "the user's files that agents may write": (
        "agents.worktrees:Worktrees._merge",
        "agents.worktrees:_changed",
        "process.git:_is_file_or_missing",
        "process.git:_may_change",
        "process.git:_is_real",
        "process.git:_root",
        "process.git:_within_bounds",
        "process.writable",
        "snapshots.user_files:_last_change",
        "snapshots.user_files:root_of",
        "snapshots.user_file_restore:_children",
        "snapshots.user_file_restore:_is_between",
        "snapshots.user_file_restore:_current_entry",
        "snapshots.user_file_restore:_status",
        "turns.turn_spec",
    ),
    "the sizes of a command's files": ("process.supervisor:_sizes",),
    "a temporary directory before any process gets it, and its lock, which none gets": (
        "process.environment:_directories",
    ),
    "the user's own choice of a file or directory": (
        "config.orchestrator",
        "config.secret_names",
        "config.spec",
        "config.uploads",
        "launch.resume",
        "launch.start:_notebook_notices",
        "models.network",
        "presentation.arguments",
        "extensions.recipes.check",
        "server.places:_team",
        "session.lookup:_looks_like_a_path",
        "tools.custom",
    ),
    "programs that are installed, and the user's settings of them": (
        "extensions.external_agents.acp.agent_programs:_required_paths",
        "extensions.external_agents.acp.agent_programs:prepare",
        "tools.command_guard",
    ),
}
"""The same for those that only look."""
TABLES = MAY_OPEN, MAY_LOOK


class Calls(ast.NodeVisitor):
    """The calls of a module that take a path, with the function that they are in."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, str]] = []
        self._within: list[str] = []

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._within.append(node.name)
        self.generic_visit(node)
        self._within.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _enter

    def visit_Call(self, node: ast.Call) -> None:
        if use := use_of(node):
            self.found.append((".".join(self._within), use, ast.unparse(node)))
        self.generic_visit(node)


def use_of(node: ast.Call) -> Literal["opens", "looks", ""]:
    """Return what a call does with a path.

    "" if nothing, or if the path is in an open directory.
    """
    name = named(node.func)
    where, _, method = name.rpartition(".")
    if {"dir_fd", "src_dir_fd"} & {each.arg for each in node.keywords} or name in SAFE:
        return ""
    if name == "open":
        first = node.args[0]
        return "" if isinstance(first, ast.Call) and not use_of(first) else "opens"
    if name in OTHERS or where == "shutil":
        return "opens"
    if method == "open" and where not in ("os", *OPENED):
        return "opens"
    if method == "replace" and len(node.args) == 1 and not node.keywords and where:
        return "opens"
    kind = where if where in ("os", "os.path") else ""
    if not where or method not in OPENING[kind] | LOOKING[kind]:
        return ""
    return "opens" if method in OPENING[kind] else "looks"


def named(function: ast.expr) -> str:
    """The dotted name of what is called; of what is no name, a word in its place."""
    if isinstance(function, ast.Attribute):
        return f"{named(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else "it"


def test_functions_with_paths_are_listed_with_their_directory() -> None:
    may_open, may_look = ({w for places in each.values() for w in places} for each in TABLES)
    used, unknown = set[str](), list[str]()
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent.name == "disk":
            continue
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        calls = Calls()
        calls.visit(ast.parse(path.read_text()))
        for function, use, call in calls.found:
            where = {module, f"{module}:{function}"}
            known = where & may_open or (where & may_look if use == "looks" else set())
            used |= known
            unknown += [] if known else [f"{module}:{function} {use}: {call}"]
    assert unknown == []
    assert sorted(may_open | may_look) == sorted(used), "some take no path any more"


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("open(home / 'config.toml', 'w')", "opens"),
        ("open(os.open(name, flags), 'rb')", "opens"),
        ("open(os.open(name, flags, dir_fd=folder), 'rb')", ""),
        ("os.open(path, os.O_RDONLY)", "opens"),
        ("(home / name).write_text(text)", "opens"),
        ("(home / name).parent.mkdir(parents=True)", "opens"),
        ("Path(home).open()", "opens"),
        ("aside.replace(path)", "opens"),
        ("text.replace('a', 'b')", ""),
        ("dataclasses.replace(it, name=1)", ""),
        ("directory.replace(name, data)", ""),
        ("directory.open(name)", ""),
        ("os.rename('a', 'b', src_dir_fd=1, dst_dir_fd=1)", ""),
        ("shutil.copy2(a, b)", "opens"),
        ("shutil.rmtree(path)", ""),
        ("os.path.isfile(path)", "looks"),
        ("os.path.join(a, b)", ""),
        ("path.is_dir()", "looks"),
        ("write_private(path, text)", "opens"),
    ],
)
def test_classification_of_calls_with_paths(line: str, use: str) -> None:
    [statement] = ast.parse(line).body
    assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    assert use_of(statement.value) == use
