"""Sessions and turns on disk."""

from nb_agents.session import copying, history, journal, manage, views
from nb_agents.session.archive import Verification, verify_archive
from nb_agents.session.commands import SessionStore, ask, has_commands, send
from nb_agents.session.conversation import PastMessage
from nb_agents.session.copying import copy_tree, copy_workspaces
from nb_agents.session.export_manifest import MANIFEST, Change, read_manifest, write_manifest
from nb_agents.session.history import (
    PastTurn,
    Session,
    load_session,
    load_turn,
    past_events,
    workspace_files,
)
from nb_agents.session.journal import (
    MAX_BYTES,
    Journal,
    JournalContents,
    JournalReader,
    read_journal,
)
from nb_agents.session.layout import (
    CLAIM_LOCK,
    LISTED,
    PROGRAMS,
    SESSIONS_VARIABLE,
    SessionList,
    TurnPaths,
    claim_turn,
    discard_turn,
    find_task,
    prevent_turns,
    restore_workspaces,
    session_root,
    sessions_in,
    store_workspaces,
    store_workspaces_if_dead,
    turns_of,
)
from nb_agents.session.lookup import current_origin, find_session, find_turn, with_origin
from nb_agents.session.manage import (
    delete_session,
    export_session,
    fork_session,
    rename_session,
    strip_session,
)
from nb_agents.session.ownership import new_mark
from nb_agents.session.views import read_json, write_atomic, write_views

__all__ = [
    "write_manifest",
    "read_manifest",
    "Change",
    "MANIFEST",
    "verify_archive",
    "Verification",
    "CLAIM_LOCK",
    "Journal",
    "JournalContents",
    "JournalReader",
    "LISTED",
    "MAX_BYTES",
    "PROGRAMS",
    "PastMessage",
    "PastTurn",
    "SESSIONS_VARIABLE",
    "Session",
    "SessionList",
    "SessionStore",
    "TurnPaths",
    "ask",
    "claim_turn",
    "copy_tree",
    "copy_workspaces",
    "copying",
    "current_origin",
    "delete_session",
    "discard_turn",
    "export_session",
    "find_session",
    "find_task",
    "find_turn",
    "fork_session",
    "has_commands",
    "history",
    "journal",
    "load_session",
    "load_turn",
    "manage",
    "new_mark",
    "past_events",
    "prevent_turns",
    "read_journal",
    "read_json",
    "rename_session",
    "restore_workspaces",
    "send",
    "session_root",
    "sessions_in",
    "store_workspaces",
    "store_workspaces_if_dead",
    "strip_session",
    "turns_of",
    "views",
    "with_origin",
    "workspace_files",
    "write_atomic",
    "write_views",
]
