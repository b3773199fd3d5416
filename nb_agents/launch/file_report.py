"""Checks a file: reports everything that starting it would report, without starting it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from nb_agents.launch.team_kind import kind_named, kind_of_file
from nb_agents.launch.work_kind import CheckArguments, FileReport


def check_file(
    file: str,
    config: str | None = None,
    bundles: Sequence[str] = (),
    *,
    connects: bool = False,
    root: str | os.PathLike[str] | None = None,
) -> FileReport:
    """Check a file without running it.

    Args:
        file: A team file, or the file of another kind of work.
        config: The team file, if ``file`` is of another kind, such as a recipe.
        bundles: Directories of bundles for a recipe, each as ``NAME=DIR``.
        connects: Whether to load custom tools and start MCP servers, to test them.
        root: The session root with earlier runs, on which the estimate is based. None means the
            default one.

    Raises:
        ConfigError: A file is invalid.
        TaskError: An argument has no effect for this kind of file.
    """
    kind = kind_named(kind_of_file(file))
    return kind.report(CheckArguments(file, config, bundles, connects, root))
