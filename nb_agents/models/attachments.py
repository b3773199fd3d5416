"""Puts files into what a model is asked.

They are read when a backend is made and put in at each request: so the journal holds their place
and not their bytes, and a resumed run sends them again. What has an address is sent as that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nb_agents.config.uploads import UploadSpec
from nb_agents.errors import ConfigError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, UserContent

__all__ = ["read_uploads", "with_uploads"]

_MEDIA = ("image/", "audio/", "video/", "application/pdf")


def read_uploads(uploads: Sequence[UploadSpec]) -> list[UserContent]:
    """Read files.

    Args:
        uploads: Which.

    Returns:
        For each its name, and its content; what is neither media nor a PDF is sent as text.

    Raises:
        ConfigError: One can't be read, or is neither.
    """
    return [part for upload in uploads for part in _read(upload)]


def _read(upload: UploadSpec) -> list[UserContent]:
    from pydantic_ai.messages import BinaryContent

    if upload.url:
        return [f"File {upload.name}:", _by_address(upload)]
    path, kind = upload.path, upload.media_type
    try:
        if kind.startswith(_MEDIA):
            return [f"File {path.name}:", BinaryContent.from_path(path)]
        return [f"File {path.name}:\n{path.read_text(encoding='utf-8')}"]
    except OSError as exc:
        raise ConfigError(f"Upload {str(path)!r} can't be read: {exc.strerror}.") from None
    except UnicodeDecodeError:
        what = f"Upload {str(path)!r} is neither an image, audio, video, PDF nor text in UTF-8."
        raise ConfigError(f"{what} Remove it.") from None


def _by_address(upload: UploadSpec) -> UserContent:
    from pydantic_ai.messages import DocumentUrl, ImageUrl, VideoUrl

    if upload.kind in ("image", "video"):
        kind = ImageUrl if upload.kind == "image" else VideoUrl
        return kind(upload.url, media_type=upload.media_type)
    return DocumentUrl(upload.url, media_type=upload.media_type or "application/octet-stream")


def with_uploads(
    messages: Sequence[ModelMessage], content: Sequence[UserContent]
) -> Sequence[ModelMessage]:
    """Give a conversation in which the first request of a person has files besides.

    Args:
        messages: The conversation.
        content: The files, as `read_uploads` gives them.
    """
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    for place, message in enumerate(messages if content else ()):
        for number, part in enumerate(message.parts):
            if isinstance(message, ModelRequest) and isinstance(part, UserPromptPart):
                said = [part.content] if isinstance(part.content, str) else part.content
                parts = [*message.parts]
                parts[number] = replace(part, content=[*said, *content])
                return [*messages[:place], replace(message, parts=parts), *messages[place + 1 :]]
    return messages
