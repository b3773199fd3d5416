r"""Files that a user gives to agents: MassGen's ``upload_files``, and ``@path`` in a task.

An uploaded file is on this machine or has a URL, which is fetched by the provider and never by us.
``@path`` lets agents read a file, so it works only in text that a user typed, and not in the
content of variables, tables or model replies. If the file does not exist, it is ordinary text, such
as ``@property``, unless it is clearly a path.

Source: MassGen 0.1.97, `backend/base_with_custom_tool_and_mcp.py` (the keys of an entry) and
`path_handling/prompt_parser.py` (the end of a path; ``:w``; ``\@``); pydantic-ai 2.68 (which
provider accepts which files).
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, model_validator

from nb_agents.config.model_keys import WireFormat
from nb_agents.config.spec import Spec, resolve_next_to_file
from nb_agents.disk.names import as_on_disk
from nb_agents.errors import TaskError

MAX_BYTES = 20_000_000
"""Maximum size of a file, about as much as Anthropic and Google accept in one request."""

Server = WireFormat | Literal["openrouter"]
"""A wire format, or OpenRouter, which accepts more files than others of its format."""

_TAKES: Mapping[str, frozenset[Server]] = {
    "audio": frozenset({"openai chat", "openrouter", "google"}),
    "video": frozenset({"openrouter", "google"}),
}
"""The servers that accept each kind of file. All servers accept images, PDFs and text."""

_FETCHES: Mapping[str, frozenset[Server]] = {
    "image": frozenset({"openai chat", "openai responses", "openrouter", "anthropic"}),
    "pdf": frozenset({"openai responses", "openrouter", "anthropic"}),
    "document": frozenset({"openai responses"}),
    "video": frozenset({"openrouter"}),
}
"""The servers that fetch each kind of file from a URL.

With other servers, pydantic-ai would fetch the file, or the server rejects it. No server fetches
audio: OpenAI's Responses API accepts only URLs of documents and images.
Source: https://developers.openai.com/api/docs/guides/file-inputs
"""

_YOUTUBE = frozenset({"youtu.be", "youtube.com", "www.youtube.com", "m.youtube.com"})
"""YouTube's hosts, from which Google fetches videos. Source: pydantic-ai's `VideoUrl`."""


_Place = Annotated[str | None, AfterValidator(resolve_next_to_file)]


class UploadSpec(Spec):
    """A file that the model receives with the task. Exactly one of the keys must be given.

    Attributes:
        image_path, audio_path, video_path, file_path: A path, absolute or relative to the team
            file's directory or the working directory, or a URL (``https://…``), which the provider
            fetches. The file's name determines its type. For a URL without a suffix, the key does.
    """

    image_path: _Place = None
    audio_path: _Place = None
    video_path: _Place = None
    file_path: _Place = None

    @model_validator(mode="after")
    def _has_one_key(self) -> UploadSpec:
        if len([*self._values()]) != 1:
            names = ", ".join(f"`{name}`" for name in type(self).model_fields)
            raise ValueError(f"an upload needs exactly one of {names}")
        if self.url and "@" in (_parts(self.url).netloc or "@"):
            raise ValueError(
                "its URL must have a host and must not contain a password, which would be stored"
            )
        return self

    @property
    def url(self) -> str:
        """The file's URL, or "" for a file on this machine."""
        value = next(self._values())
        return value if value.lower().startswith(("http://", "https://")) else ""

    @property
    def path(self) -> Path:
        """The file's path on this machine, if it has no URL."""
        return as_on_disk(Path(next(self._values())).expanduser())

    @property
    def name(self) -> str:
        """The file's name, without directories."""
        return PurePosixPath(_parts(self.url).path).name or "file" if self.url else self.path.name

    @property
    def media_type(self) -> str:
        """The file's media type, determined by its name or its key, or "" if unknown."""
        guessed = mimetypes.guess_type(self.name)[0] or ""
        if guessed or not self.url:
            return guessed
        if self.video_path or self.is_youtube:
            return "video/mp4"
        return "image/*" if self.image_path else "audio/mpeg" if self.audio_path else ""

    @property
    def is_youtube(self) -> bool:
        """Whether the file is a YouTube video."""
        return bool(self.url) and _parts(self.url).hostname in _YOUTUBE

    @property
    def kind(self) -> str:
        """The kind of file: image, audio, video, pdf, or document for anything else."""
        first, _, second = self.media_type.partition("/")
        if first in ("image", "audio", "video"):
            return first
        return "pdf" if second == "pdf" else "document"

    @property
    def fault(self) -> str:
        """Why the file can't be sent, or "". URLs are checked only by the provider."""
        if self.url:
            return ""
        try:
            size = self.path.stat().st_size if self.path.is_file() else -1
        except (OSError, ValueError):
            size = -1
        if size < 0:
            return f"Upload {str(self.path)!r} is not a file. Correct or remove it."
        if size > MAX_BYTES:
            return f"Upload {str(self.path)!r} has {size} bytes; the limit is {MAX_BYTES}."
        return ""

    def _values(self) -> Iterator[str]:
        for name in type(self).model_fields:
            if value := getattr(self, name):
                yield value


def is_accepted(upload: UploadSpec, server: Server | None) -> bool:
    """Return whether a server accepts a file.

    Args:
        upload: The file.
        server: The server's wire format, or None without a server.
    """
    if upload.url:
        is_for_google = server == "google" and upload.is_youtube
        return is_for_google or server in _FETCHES.get(upload.kind, ())
    return server is not None and (upload.kind not in _TAKES or server in _TAKES[upload.kind])


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # a malformed IPv6 address
        return urlsplit("")


_MENTION = re.compile(
    r"""(?<![\w\\])@(?!cell:\w)(?:"(?P<quoted>[^"\n]+)"|(?P<plain>[^\s@:"]+?))(?P<write>:w)?"""
    r"(?=\s|$|[,;!?)}\]>:]|\.(?=\s|$))"
)
_CELL = re.compile(r"(?<![\w\\])@(?:cell:(?P<name>[\w-]+)|cells)(?![\w./:-]*[\w/])")
_ESCAPED_CELL = re.compile(r"\\(?=@(?:cell:\w|cells\b))")
_ESCAPED = re.compile(r"\\@(?!cell:\w|cells\b)(?=\S)")
_RELATIVE = re.compile(r"\.{1,2}/|~/")
_SUFFIX = re.compile(r"[^/]\.\w{1,8}$")
_OF_FILES = frozenset(
    ".csv .tsv .json .jsonl .parquet .txt .md .rst .pdf .docx .xlsx .pptx .py .ipynb .yaml .yml "
    ".toml .html .xml .sql .png .jpg .jpeg .gif .webp .svg .zip".split()
)
"""Suffixes that clearly belong to a file, unlike the one in ``@pytest.fixture``."""


class Mentions(NamedTuple):
    """A task and the files that it mentions.

    Attributes:
        task: The task, with each mention replaced by the file's absolute path.
        paths: The absolute paths of the files, without duplicates.
    """

    task: str
    paths: tuple[str, ...]


def cell_mentions(task: str) -> tuple[str, ...]:
    """Return the cells of the notebook that a task mentions: positions, ids, or "" for all cells.

    Example:
        >>> cell_mentions("Compare @cell:3 with @cells.")
        ('3', '')
    """
    return tuple(dict.fromkeys(match["name"] or "" for match in _CELL.finditer(task)))


def without_escapes(task: str) -> str:
    r"""Return a task for models, without the backslashes before ``@cell:…`` and ``@cells``.

    Example:
        >>> without_escapes(r"What does \@cell:3 mean?")
        'What does @cell:3 mean?'
    """
    return _ESCAPED_CELL.sub("", task)


def mentions(task: str, folder: Path | None = None) -> Mentions:
    r"""Replace each ``@path`` in a task with the file's path, and collect these paths.

    ``\@`` is an ordinary ``@``. Before the mention of a cell, the backslash stays, because cells
    are looked up after the start; see `without_escapes`.

    Args:
        task: The task as the user typed it.
        folder: The directory whose files, except hidden ones, may be mentioned. None allows any
            file. Used for tasks passed from Python, which may contain text from untrusted sources.

    Raises:
        TaskError: A mention asks for write permission, which only a team file can grant. Or it is
            clearly a path, but the file does not exist or is not in ``folder``.

    Example:
        >>> mentions("Ask ada@example.org about @property.").paths
        ()
    """
    paths: dict[str, None] = {}

    def replace(match: re.Match[str]) -> str:
        path = _existing(match["quoted"] or match["plain"])
        if path is None:
            if match["write"] or _is_clearly_a_path(match["quoted"] or match["plain"]):
                raise TaskError(
                    f"There is no file for {match[0]} in {Path.cwd()}. Correct the path, or write "
                    f"\\{match[0]} if it is not a path."
                )
            return match[0]
        if match["write"]:
            raise TaskError(
                f"{match[0]} requests write access to {str(path)!r}. Allow it in the team file: "
                "`orchestrator.context_paths`, with `permission: write`."
            )
        if folder is not None and not _is_open(path, folder):
            raise TaskError(
                f"{match[0]} is hidden or outside {folder}. A task passed from Python can't "
                f"include such a file with @. Pass it in RunOptions(context_paths=[…]), or write "
                f"\\{match[0]} if it is not a path."
            )
        paths[str(path)] = None
        return str(path)

    return Mentions(_ESCAPED.sub("@", _MENTION.sub(replace, task)), tuple(paths))


def _is_open(path: Path, folder: Path) -> bool:
    inside = path.relative_to(folder).parts if path.is_relative_to(folder) else (".",)
    return not any(part.startswith(".") for part in inside)


def _is_clearly_a_path(name: str) -> bool:
    """Return whether a string is clearly a path and not a decorator, package or address."""
    if _RELATIVE.match(name) or PurePosixPath(name).suffix.lower() in _OF_FILES:
        return True
    folder = PurePosixPath(name).parent
    is_absolute = name.startswith("/")  # also "@/components/x.vue", in which "@" is a directory
    if "/" in name and not is_absolute and _SUFFIX.search(name):
        return True
    return "/" in name and folder != PurePosixPath("/") and _existing(str(folder)) is not None


def _existing(name: str) -> Path | None:
    try:
        return as_on_disk(Path(name).expanduser()).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # an unknown ~user, a NUL
        return None
