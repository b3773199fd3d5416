"""Writes the golden files that have changed: ``make golden``."""

from __future__ import annotations

import os
import sys
import tempfile

from tests.golden.files import ROOT, golden_files, leftover_files
from tests.golden.projections import same_everywhere
from tests.golden.stored import add_missing_kinds, unread_journals


def main() -> None:
    """Write what has changed, and remove what nothing makes any more."""
    if unread := unread_journals():
        sys.exit(f"Stored journals can't be read, so nothing is written: {unread}")
    add_missing_kinds()
    for path, make in golden_files().items():
        text, file = make(), ROOT / path
        if not file.exists() or file.read_text("utf-8") != text:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
            print(f"wrote {path}")
    for path in leftover_files():
        (ROOT / path).unlink()
        print(f"removed {path}")


if __name__ == "__main__":
    with same_everywhere(), tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state  # whether a session is this user's is looked up there
        main()
