"""The contents of workspaces and user files, for rewinds."""

from nb_agents.launch.file_calls import FileCall
from nb_agents.session.layout import COPIES_FOLDER, SNAPSHOTS
from nb_agents.snapshots.diff import FileChange, change_of, file_changes
from nb_agents.snapshots.index import Index
from nb_agents.snapshots.store import SnapshotStore
from nb_agents.snapshots.tree import DamagedError, TreeEntry
from nb_agents.snapshots.user_file_restore import (
    RestorePlan,
    plan_restore,
    refusal_lines,
    restore_files,
    undo_restore,
    write_patches,
)
from nb_agents.snapshots.user_files import LocationScan, UserFiles

__all__ = [
    "DamagedError",
    "FileCall",
    "FileChange",
    "COPIES_FOLDER",
    "Index",
    "LocationScan",
    "RestorePlan",
    "SNAPSHOTS",
    "SnapshotStore",
    "TreeEntry",
    "UserFiles",
    "change_of",
    "file_changes",
    "plan_restore",
    "refusal_lines",
    "restore_files",
    "undo_restore",
    "write_patches",
]
