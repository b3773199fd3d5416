"""Checks the environment that runs start in: versions, network, keys, Jupyter, sandbox, disk.

The report names API keys and proxies but contains no key, user or password. The checks read local
files and variables only. They make no request.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal, NamedTuple

from jupyter_core.paths import jupyter_config_path, jupyter_path
from packaging.requirements import Requirement

from nb_agents.config.backends import BACKEND_TYPES
from nb_agents.config.extras import EXTRAS, missing_extra
from nb_agents.config.secrets import secrets_of_environment
from nb_agents.errors import UserError, error_message
from nb_agents.masking import Mask
from nb_agents.models.network import check_network, environment_proxies
from nb_agents.plugins import extensions
from nb_agents.tools.sandbox import confinement
from nb_agents.unicode import without_controls

State = Literal["ok", "note", "problem"]
"""A note is a limitation that does not prevent runs."""

MAX_CHARS = 600
"""Maximum length of a check's text, in characters."""
MIN_FREE_BYTES = 200_000_000
"""Less free space than this on the session root's disk is a problem."""
MAX_KERNELS = 10
"""Maximum number of kernels that are listed."""
MAX_CONFIG_BYTES = 1_000_000
EXTENSION = "nb-agents"
"""The name of the lab extension."""
FRONT_ENDS = ("jupyterlab", "notebook", "jupyter_server", "jupyter_ai", "marimo")
"""Packages whose versions help to understand a bug report."""


class Check(NamedTuple):
    """A fact about the environment.

    Attributes:
        name: The part of the environment.
        state: Whether something is wrong.
        text: The fact, and for a problem what to do.
    """

    name: str
    state: State
    text: str


def check_environment(root: Path, front_end: str) -> list[Check]:
    """Check the environment of this process. Takes at most a few seconds.

    Args:
        root: The session root.
        front_end: The user interface that asks, such as "terminal".
    """
    mask = Mask(secrets_of_environment())
    parts: tuple[Callable[[], Iterable[Check]], ...] = (
        lambda: [_system(front_end)],
        _packages,
        lambda: [_extras()],
        lambda: [_extensions()],
        _network,
        _keys,
        lambda: [_kernels()],
        lambda: [_server_extension()],
        lambda: [_lab_extension()],
        lambda: [_sandbox()],
        lambda: [_disk(root)],
    )
    return [
        check._replace(text=_bounded(mask.text(check.text)))
        for part in parts
        for check in _completed(part)
    ]


def _completed(part: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """Yield a part's checks, or a problem if it fails. A broken package may raise anything."""
    try:
        yield from part()
    except Exception as exc:
        yield Check("doctor", "problem", f"A check failed. {error_message(exc, named=True)}")


def _bounded(text: str) -> str:
    text = " ".join(without_controls(text).split())
    home = str(Path.home())
    text = text.replace(f"{home}/", "~/") if len(home) > 1 else text
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"


def _system(front_end: str) -> Check:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    found = _version("nb_agents") or "unknown version"
    return Check("nb_agents", "ok", f"{found}, {python}, {system}, in a {front_end}")


def _packages() -> Iterator[Check]:
    """Yield the versions, and a problem for each package that doesn't meet our requirements."""
    try:
        needed = [Requirement(each) for each in requires("nb_agents") or ()]
    except PackageNotFoundError:
        needed = []
        yield Check("packages", "note", "nb_agents is not installed as a package.")
    needed = [each for each in needed if each.marker is None or each.marker.evaluate()]
    for part, names in (("packages", [each.name for each in needed]), ("Jupyter", FRONT_ENDS)):
        found = ", ".join(f"{name} {_version(name)}" for name in names if _version(name))
        yield Check(part, "ok", found or "none")
    for each in needed:
        found = _version(each.name)
        if not found or not each.specifier.contains(found, prereleases=True):
            state = f"{each.name} {found} is installed" if found else f"{each.name} is missing"
            wanted = f"{each.name}{each.specifier}"
            yield Check("packages", "problem", f"{state}. Install it: `pip install '{wanted}'`.")


def _version(package: str) -> str:
    try:
        return version(package) or ""
    except PackageNotFoundError:
        return ""


def _extras() -> Check:
    missing = [extra for extra in EXTRAS if missing_extra(extra)]
    if not missing:
        return Check("extras", "ok", f"{', '.join(EXTRAS)} are installed.")
    remedy = f"`pip install 'nb_agents[{','.join(missing)}]'` installs them."
    return Check("extras", "note", f"Not installed: {', '.join(missing)}. {remedy}")


def _extensions() -> Check:
    names = ", ".join(each.name for each in extensions())
    return Check("extensions", "ok", names or "none")


def _network() -> Iterator[Check]:
    try:
        check_network()
    except UserError as exc:
        yield Check("network", "problem", str(exc))
        return
    proxies = [str(each) for each in environment_proxies()]
    if os.environ.get("NO_PROXY") or os.environ.get("no_proxy"):
        proxies.append("NO_PROXY is set")
    certificates = [f"{n} is set" for n in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(n)]
    yield Check("network", "ok", ", ".join([*proxies, *certificates]) or "no proxy")


def _keys() -> Iterator[Check]:
    """Yield the names of the API keys in the environment, and keys that no server can accept."""
    types = BACKEND_TYPES.all().values()
    names = dict.fromkeys(name for each in types for name in each.variables)
    found = [name for name in names if os.environ.get(name)]
    text = f"found: {', '.join(found)}" if found else "none in the environment"
    yield Check("keys", "ok" if found else "note", text)
    for name in found:
        value = os.environ[name]
        if value != value.strip() or value[0] in "'\"" or not value.isprintable():
            yield Check(
                "keys",
                "problem",
                f"{name} contains a quote, space or line break that is not part of a key. Set it "
                "again without.",
            )


def _kernels() -> Check:
    """Check that a kernel of Jupyter runs in this environment."""
    from jupyter_client.kernelspec import KernelSpecManager

    specs = sorted(KernelSpecManager().get_all_specs().items())
    programs = {name: str((each["spec"].get("argv") or [""])[0]) for name, each in specs}
    here = [name for name, program in programs.items() if _is_this_python(program)]
    shown = [
        f"{name} ({'this environment' if name in here else program})"
        for name, program in [*programs.items()][:MAX_KERNELS]
    ]
    more = [f"{len(programs) - MAX_KERNELS} more"] if len(programs) > MAX_KERNELS else []
    text = ", ".join([*shown, *more]) or "none"
    if here:
        return Check("kernels", "ok", text)
    remedy = "`python -m ipykernel install --user --name nb-agents` adds one."
    return Check("kernels", "note", f"No kernel runs in this environment. {remedy} Found: {text}")


def _is_this_python(program: str) -> bool:
    """Return whether a program of a kernel is the interpreter of this environment."""
    names = {"python", "python3", f"python3.{sys.version_info.minor}"}
    # Not resolved, because the interpreters of virtual environments are links to the same program.
    return program in names or (
        Path(program).parent == Path(sys.executable).parent and Path(program).name in names
    )


def _server_extension() -> Check:
    """Check that the Jupyter server of this environment loads our extension."""
    if not _version("jupyter_server"):
        return Check("server", "note", f"jupyter_server is not in this environment. {_ELSEWHERE}")
    files = ("jupyter_server_config.json", "jupyter_server_config.d/nb_agents.json")
    states = [
        config.get("ServerApp", {}).get("jpserver_extensions", {}).get("nb_agents")
        for folder in jupyter_config_path()
        for name in files
        if (config := _json(Path(folder, name)))
    ]
    state = next((each for each in states if each is not None), None)
    if state:
        return Check("server", "ok", "The server extension is enabled.")
    found = "disabled" if state is False else "not installed"
    remedy = "Run `jupyter server extension enable nb_agents`, then restart Jupyter."
    return Check("server", "problem", f"The server extension is {found}. {remedy}")


def _lab_extension() -> Check:
    """Check that JupyterLab and Notebook of this environment find our extension."""
    if not (_version("jupyterlab") or _version("notebook")):
        return Check("lab extension", "note", f"No JupyterLab in this environment. {_ELSEWHERE}")
    folders = [Path(each, EXTENSION) for each in jupyter_path("labextensions")]
    package = next(filter(None, (_json(each / "package.json") for each in folders)), None)
    if package is None:
        remedy = "Install nb_agents again in the environment of JupyterLab."
        return Check("lab extension", "problem", f"It is not installed. {remedy}")
    if _is_disabled():
        remedy = f"Run `jupyter labextension enable {EXTENSION}`, then reload the page."
        return Check("lab extension", "problem", f"It is disabled. {remedy}")
    found, expected = str(package.get("version")), _version("nb_agents")
    if found != expected:
        remedy = f"Install nb_agents {expected} again, then reload the page."
        return Check("lab extension", "problem", f"It has version {found}. {remedy}")
    return Check("lab extension", "ok", f"Version {found} is installed.")


def _is_disabled() -> bool:
    """Return whether JupyterLab's configuration disables our extension."""
    pages = [_json(Path(each, "labconfig", "page_config.json")) for each in jupyter_config_path()]
    disabled = (page.get("disabledExtensions", {}) for page in pages if page)
    return any(
        each.get(EXTENSION, False) if isinstance(each, dict) else EXTENSION in each
        for each in disabled
    )


_ELSEWHERE = "If Jupyter has its own environment, run `nb-agents doctor` there, too."


def _json(path: Path) -> dict[str, dict[str, dict[str, object]]] | None:
    """Return the JSON object in a file of Jupyter's configuration, or None."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.loads(file.read(MAX_CONFIG_BYTES))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _sandbox() -> Check:
    found = confinement()
    if found.is_confined:
        return Check("sandbox", "ok", "Commands of agents run in bubblewrap.")
    if found.is_refused:
        text = f"Agents can't run commands: bubblewrap does not work here ({found.why_not})."
        return Check("sandbox", "note", f"{text} `sandbox: off` runs them unconfined.")
    remedy = " Install it." if sys.platform == "linux" else ""
    return Check("sandbox", "note", f"Commands are not sandboxed: {found.why_not}.{remedy}")


def _disk(root: Path) -> Check:
    """Check that sessions can be written."""
    existing = next(each for each in (root, *root.parents) if each.is_dir())
    if not os.access(existing, os.W_OK):
        remedy = "Use `--session-root DIR` or NB_AGENTS_SESSIONS."
        return Check("sessions", "problem", f"{root} is not writable. {remedy}")
    free = shutil.disk_usage(existing).free
    space = f"{free // 1_000_000:,} MB free"
    if free < MIN_FREE_BYTES:
        remedy = "Free some space, or use `--session-root DIR`."
        return Check("sessions", "problem", f"{root}: only {space}. {remedy}")
    return Check("sessions", "ok", f"{root}, {space}")
