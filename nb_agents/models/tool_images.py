"""Adds the images of tool results to a model request.

Journals and conversations contain only the names of the images' files in the session. The images
are read for each request, the latest ones first, as far as they fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nb_agents.disk.directory import Directory
from nb_agents.events import ToolImage

if TYPE_CHECKING:
    from pydantic_ai.messages import BinaryContent, ModelMessage

MAX_IMAGES = 8
"""Maximum number of images in a request."""
MAX_BYTES = 4_000_000
"""Maximum size of all images in a request."""
KEY = "images"
"""The key of the images in the metadata of a tool result."""


def read_image(session: Path, image: ToolImage) -> bytes | None:
    """Return the content of an image, or None if it is not there any more.

    Args:
        session: The session's directory.
        image: The image. Its file must be in the session.
    """
    with suppress(OSError, ValueError), Directory.at(session) as folder:
        return folder.read(image.file, MAX_BYTES, follow=False)
    return None


def has_images(messages: Sequence[ModelMessage]) -> bool:
    """Return whether a conversation has tool results with images."""
    return any(_images_of(part) for message in messages for part in message.parts)


def with_images(
    messages: Sequence[ModelMessage], session: Path | None, *, takes_images: bool
) -> list[ModelMessage]:
    """Return a conversation with the images of its tool results. Reads files.

    Args:
        messages: The conversation.
        session: The session's directory, or None if it is unknown.
        takes_images: Whether the model takes images. If not, a line says that they are left out.
    """
    room = _Room(session, MAX_IMAGES if takes_images else 0)
    changed: list[ModelMessage] = []
    for message in reversed(messages):
        if message.kind == "request" and any(map(_images_of, message.parts)):
            parts = [_with(part, room.take(_images_of(part))) for part in message.parts]
            message = replace(message, parts=parts)
        changed.append(message)
    return changed[::-1]


class _Room:
    """How many images, and how many bytes of them, still fit into a request."""

    def __init__(self, session: Path | None, count: int) -> None:
        self._session = session
        self._count = count
        self._bytes = MAX_BYTES

    def take(self, images: Sequence[ToolImage]) -> list[BinaryContent]:
        """Return the images that fit, for a request."""
        from pydantic_ai.messages import BinaryContent

        taken = []
        for image in images:
            data = read_image(self._session, image) if self._session and self._count else None
            if data is not None and len(data) <= self._bytes:
                self._bytes, self._count = self._bytes - len(data), self._count - 1
                taken.append(BinaryContent(data, media_type=image.media_type))
        return taken


def _images_of(part: Any) -> tuple[ToolImage, ...]:
    metadata = getattr(part, "metadata", None) if part.part_kind == "tool-return" else None
    return metadata.get(KEY, ()) if isinstance(metadata, dict) else ()


def _with(part: Any, images: Sequence[BinaryContent]) -> Any:
    """Return a part with its images. A line says how many of them are left out."""
    if not _images_of(part):
        return part
    text, missing = str(part.content), len(_images_of(part)) - len(images)
    if missing:
        text += f"\n[Images left out of this request: {missing}]"
    return replace(part, content=[text, *images] if images else text)
