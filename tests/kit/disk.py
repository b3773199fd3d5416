"""Safe access to directories and locks."""

from nb_agents.disk import entry
from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import RefusedError, join_names, printable_name
from nb_agents.disk.lock import is_held
from nb_agents.disk.private import make_folder, open_private, private_lock, write_private

__all__ = [
    "Directory",
    "RefusedError",
    "entry",
    "is_held",
    "join_names",
    "make_folder",
    "open_private",
    "printable_name",
    "private_lock",
    "write_private",
]
