"""Images that a provider made for a model: files of the agent's workspace.

What stands in the conversation in their place is their name. So the journal holds no image, a
resumed run has the file and asks for none again, and a model knows what it has made: of the
providers, OpenAI is not told again of an image that it has not stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import CancelScope

from nb_agents.tools.base import ToolError

if TYPE_CHECKING:
    from pydantic_ai.messages import FilePart, ModelResponse, ModelResponsePart

__all__ = ["Keep", "with_images_kept"]

Keep = Callable[[str, bytes], Awaitable[None]]
"""Writes a file into the agent's workspace, or raises ToolError."""

FOLDER = "images"
_ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif"}


async def with_images_kept(response: ModelResponse, call: int, keep: Keep | None) -> ModelResponse:
    """Write the images of a reply into files, and put their names in their place.

    Args:
        response: The reply.
        call: The agent's number of the request, for the names.
        keep: Writes a file; None where there is no workspace.
    """
    from pydantic_ai.messages import FilePart, TextPart

    if not response.files:
        return response
    parts: list[ModelResponsePart] = []
    number = 0
    for part in response.parts:
        if not isinstance(part, FilePart):
            parts.append(part)
            continue
        number += 1
        with CancelScope(shield=True):  # it is paid for
            parts.append(TextPart(await _kept(part, f"{call}_{number}", keep)))
    return replace(response, parts=parts)


async def _kept(part: FilePart, name: str, keep: Keep | None) -> str:
    kind, data = part.content.media_type, part.content.data
    if keep is None or kind not in _ENDINGS:
        return f"[A file of type {kind[:50]} was made, and is not kept.]"
    path = f"{FOLDER}/{name}.{_ENDINGS[kind]}"
    try:
        await keep(path, data)
    except ToolError as exc:
        return f"[An image was made, and is not kept: {exc}.]"
    return f"[The image that was made is the file {path} of the workspace, {len(data)} bytes.]"
