r"""Files that a person gives to agents: MassGen's ``upload_files``, and ``@path`` in a task.

An uploaded file is on this machine, or has an address that its provider fetches; nothing is fetched
from here. ``@path`` is read only in what a person typed, never in what a variable, a table or a
model put there: it lets agents read a file. Where there is no such file it is plain text, as in
``@property``, unless it can hardly be anything but a path.

Source: MassGen 0.1.97, `backend/base_with_custom_tool_and_mcp.py` (the keys of an entry) and
`path_handling/prompt_parser.py` (where a path ends; ``:w``; ``\@``); pydantic-ai 2.68 (which
provider takes what).
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
from nb_agents.config.spec import Spec, beside_the_file
from nb_agents.errors import TaskError

MAX_BYTES = 20_000_000
"""Of one file: it is sent with each request. Anthropic and Google take about so much in one."""

Server = WireFormat | Literal["openrouter"]
"""How a server is spoken to; OpenRouter's takes more than others of its format."""

_TAKES: Mapping[str, frozenset[Server]] = {
    "audio": frozenset({"openai chat", "openrouter", "google"}),
    "video": frozenset({"openrouter", "google"}),
}
"""Images, PDFs and texts are taken by all."""

_FETCHES: Mapping[str, frozenset[Server]] = {
    "image": frozenset({"openai chat", "openai responses", "openrouter", "anthropic"}),
    "pdf": frozenset({"openai responses", "openrouter", "anthropic"}),
    "document": frozenset({"openai responses"}),
    "video": frozenset({"openrouter"}),
}
"""Who fetches what by its address. For the others pydantic-ai would, or they refuse it.

Audio is fetched by nobody: OpenAI's Responses API takes addresses of papers and images alone.
Source: https://developers.openai.com/api/docs/guides/file-inputs
"""

_YOUTUBE = frozenset({"youtu.be", "youtube.com", "www.youtube.com", "m.youtube.com"})
"""Whose videos Google fetches, too. Source: pydantic-ai's `VideoUrl.is_youtube`."""


_Place = Annotated[str | None, AfterValidator(beside_the_file)]


class UploadSpec(Spec):
    """A file to upload; exactly one of the keys says where it is.

    Attributes:
        image_path, audio_path, video_path, file_path: Its path, absolute or relative to the team's
            file or the working directory, or its address (``https://…``), by which the provider
            fetches it. Its name says what it is; the key does where an address tells nothing.
    """

    image_path: _Place = None
    audio_path: _Place = None
    video_path: _Place = None
    file_path: _Place = None

    @model_validator(mode="after")
    def _is_one(self) -> UploadSpec:
        if len([*self._given()]) != 1:
            names = ", ".join(f"`{name}`" for name in type(self).model_fields)
            raise ValueError(f"an upload has exactly one of {names}")
        if self.url and "@" in (_parts(self.url).netloc or "@"):
            raise ValueError("its address has no host, or a password, which would be stored")
        return self

    @property
    def url(self) -> str:
        """Its address; "" of a file of this machine."""
        value = next(self._given())
        return value if value.lower().startswith(("http://", "https://")) else ""

    @property
    def path(self) -> Path:
        """Where it is on this machine, if it has no address."""
        return Path(next(self._given())).expanduser()

    @property
    def name(self) -> str:
        """What it is called."""
        return PurePosixPath(_parts(self.url).path).name or "file" if self.url else self.path.name

    @property
    def media_type(self) -> str:
        """What it holds, by its name or else its key; "" when that tells nothing."""
        guessed = mimetypes.guess_type(self.name)[0] or ""
        if guessed or not self.url:
            return guessed
        if self.video_path or self.is_youtube:
            return "video/mp4"
        return "image/*" if self.image_path else "audio/mpeg" if self.audio_path else ""

    @property
    def is_youtube(self) -> bool:
        """Whether it is a video of YouTube's."""
        return bool(self.url) and _parts(self.url).hostname in _YOUTUBE

    @property
    def kind(self) -> str:
        """What it is in a word: image, audio, video, pdf, or document for anything else."""
        first, _, second = self.media_type.partition("/")
        if first in ("image", "audio", "video"):
            return first
        return "pdf" if second == "pdf" else "document"

    @property
    def fault(self) -> str:
        """Why it can't be sent, or ""; of an address its provider says so."""
        if self.url:
            return ""
        try:
            size = self.path.stat().st_size if self.path.is_file() else -1
        except (OSError, ValueError):
            size = -1
        if size < 0:
            return f"Upload {str(self.path)!r} is not a file here. Correct or remove it."
        if size > MAX_BYTES:
            return f"Upload {str(self.path)!r} has {size} bytes; {MAX_BYTES} can be sent."
        return ""

    def _given(self) -> Iterator[str]:
        for name in type(self).model_fields:
            if value := getattr(self, name):
                yield value


def is_taken(upload: UploadSpec, server: Server | None) -> bool:
    """Return whether a server accepts such a file.

    Args:
        upload: The file.
        server: How the server is spoken to; None where there is none.
    """
    if upload.url:
        is_googles = server == "google" and upload.is_youtube
        return is_googles or server in _FETCHES.get(upload.kind, ())
    return server is not None and (upload.kind not in _TAKES or server in _TAKES[upload.kind])


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # half an IPv6 address
        return urlsplit("")


_MENTION = re.compile(
    r"""(?<![\w\\])@(?:"(?P<quoted>[^"\n]+)"|(?P<plain>[^\s@:"]+?))(?P<write>:w)?"""
    r"(?=\s|$|[,;!?)}\]>:]|\.(?=\s|$))"
)
_ESCAPED = re.compile(r"\\@(?=\S)")
_HERE = re.compile(r"\.{1,2}/|~/")
_SUFFIX = re.compile(r"[^/]\.\w{1,8}$")
_OF_FILES = frozenset(
    ".csv .tsv .json .jsonl .parquet .txt .md .rst .pdf .docx .xlsx .pptx .py .ipynb .yaml .yml "
    ".toml .html .xml .sql .png .jpg .jpeg .gif .webp .svg .zip".split()
)
"""Suffixes that only names of files have; ``@pytest.fixture`` ends in none of them."""


class Mentions(NamedTuple):
    """A task and the files that it names.

    Attributes:
        task: It, with each mention replaced by where the file is.
        paths: Where they are, absolute, each once.
    """

    task: str
    paths: tuple[str, ...]


def mentions(task: str) -> Mentions:
    r"""Find the files that a person's task names.

    Args:
        task: As it was typed.

    Returns:
        The task and the files. ``\@`` stands for an @ that is none.

    Raises:
        TaskError: One is to be written, which a team's file allows and a task does not, or what
            is plainly a path leads to nothing.

    Example:
        >>> mentions("Ask ada@example.org about @property.").paths
        ()
    """
    found: dict[str, None] = {}

    def place(match: re.Match[str]) -> str:
        path = _existing(match["quoted"] or match["plain"])
        if path is None:
            if match["write"] or _is_plainly_a_path(match["quoted"] or match["plain"]):
                raise TaskError(
                    f"There is no file for {match[0]} in {Path.cwd()}. Correct the path, or write "
                    f"\\{match[0]} for the text itself."
                )
            return match[0]
        if match["write"]:
            raise TaskError(
                f"{match[0]} asks to write {str(path)!r}. Allow that in the team's file: "
                "`orchestrator.context_paths`, with `permission: write`."
            )
        found[str(path)] = None
        return str(path)

    return Mentions(_ESCAPED.sub("@", _MENTION.sub(place, task)), tuple(found))


def _is_plainly_a_path(name: str) -> bool:
    """Return whether a text is nothing but a path: no decorator, no package, no address."""
    if _HERE.match(name) or PurePosixPath(name).suffix.lower() in _OF_FILES:
        return True
    folder = PurePosixPath(name).parent
    is_absolute = name.startswith("/")  # also "@/components/x.vue", in which "@" is a directory
    if "/" in name and not is_absolute and _SUFFIX.search(name):
        return True
    return "/" in name and folder != PurePosixPath("/") and _existing(str(folder)) is not None


def _existing(name: str) -> Path | None:
    try:
        return Path(name).expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # an unknown ~user, a NUL
        return None
