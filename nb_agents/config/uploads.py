"""Files that an agent's model is shown with its task: MassGen's ``upload_files``.

Source: MassGen 0.1.97, `backend/base_with_custom_tool_and_mcp.py` (the keys of an entry); which
provider takes what, pydantic-ai 2.68.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo, model_validator

from nb_agents.config.model_keys import WireFormat
from nb_agents.config.spec import Spec

__all__ = ["MAX_BYTES", "UploadSpec", "beside_the_file", "is_taken", "media_type"]

MAX_BYTES = 20_000_000
"""Of one file: it is sent with each request. Anthropic and Google take about so much in one."""

_TAKES: Mapping[str, frozenset[WireFormat]] = {
    "audio": frozenset({"openai chat", "google"}),
    "video": frozenset({"google"}),
}
"""Images, PDFs and texts are taken by all."""


def beside_the_file(value: str | None, info: ValidationInfo) -> str | None:
    """Make a path absolute that is relative to the team's file, if there is such a file.

    A journal keeps the spec without the place of the team's file.
    """
    folder: Path | None = (info.context or {}).get("folder")
    return str(folder / value) if folder and value and _is_there(folder / value) else value


_Place = Annotated[str | None, AfterValidator(beside_the_file)]


class UploadSpec(Spec):
    """One file; exactly one of the keys says where it is.

    Attributes:
        image_path, audio_path, video_path, file_path: Its path, absolute or relative to the team's
            file or the working directory. Its content says what it is, whatever key is used.
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
        return self

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(next(self._given())).expanduser()

    @property
    def fault(self) -> str:
        """Why it can't be sent, or ""."""
        try:
            size = self.path.stat().st_size if self.path.is_file() else -1
        except (OSError, ValueError):
            size = -1
        if size < 0:
            return f"Upload {str(self.path)!r} is no file here. Mend or remove it."
        if size > MAX_BYTES:
            return f"Upload {str(self.path)!r} has {size} bytes; {MAX_BYTES} can be sent."
        return ""

    def _given(self) -> Iterator[str]:
        for name in type(self).model_fields:
            if value := getattr(self, name):
                yield value


def media_type(path: Path) -> str:
    """Say by its name what a file holds; "" when that tells nothing."""
    return mimetypes.guess_type(path.name)[0] or ""


def is_taken(upload: UploadSpec, format: WireFormat | None) -> bool:
    """Whether a server takes such a file.

    Args:
        upload: The file.
        format: How the server is spoken to; None where there is none.
    """
    kind = media_type(upload.path).partition("/")[0]
    return format is not None and (kind not in _TAKES or format in _TAKES[kind])


def _is_there(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:  # in a directory that may not be looked into
        return False
