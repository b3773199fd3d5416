"""Images in outputs of cells: which ones agents get, and their files in the turn's directory.

An image is untrusted data. Only formats that models take are kept, checked by their first bytes.
SVG is text that can contain instructions and links, so it is left out.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from nb_agents.disk.private import make_folder, write_private
from nb_agents.errors import UserError
from nb_agents.events import ToolImage
from nb_agents.extensions.notebook_cells.cells import Cell

MAX_IMAGES = 4
"""Maximum number of images in an answer, as in js/src/cell-outputs.ts."""
MAX_IMAGE = 350_000
"""Maximum length of an image as base64, as in cell-outputs.ts."""
MAX_SUM = 550_000
"""Maximum length of all images of an answer as base64, as in cell-outputs.ts."""
FOLDER = "cell_images"
"""The directory in the turn's directory with the images."""

_FORMATS = {
    "image/png": ("png", b"\x89PNG\r\n\x1a\n"),
    "image/jpeg": ("jpg", b"\xff\xd8\xff"),
    "image/gif": ("gif", b"GIF8"),
    "image/webp": ("webp", b"RIFF"),
}


class CellImage(NamedTuple):
    """An image in an output of a cell.

    Attributes:
        cell: The cell's id.
        media_type: The media type.
        data: The content as base64, or "" if it is left out.
    """

    cell: str
    media_type: str
    data: str = ""


_IMAGES = TypeAdapter(tuple[CellImage, ...])


def parse_images(text: str) -> tuple[CellImage, ...]:
    """Return the images that a page sends as JSON text.

    Raises:
        UserError: The text is invalid.
    """
    try:
        return _IMAGES.validate_json(text or "[]")
    except ValidationError as exc:
        raise UserError(f"`images` is invalid: {exc.errors()[0]['msg']}.") from None


def images_in(cell: str, outputs: object) -> list[CellImage]:
    """Return the images in the outputs of a cell's JSON, which may be anything."""
    found = []
    for output in outputs if isinstance(outputs, list | tuple) else ():
        data = output.get("data") if isinstance(output, dict) else None
        for kind, value in data.items() if isinstance(data, dict) else ():
            if isinstance(kind, str) and kind.startswith("image/"):
                text = "".join(map(str, value)) if isinstance(value, list) else str(value)
                found.append(CellImage(cell, kind, text))
    return found


def images_of_cells(notebook: Mapping[str, Any], ids: Iterable[str]) -> list[CellImage]:
    """Return the images in the outputs of the cells with these ids, in the order of the ids."""
    outputs = {each.get("id"): each.get("outputs") for each in notebook["cells"]}
    return [image for name in ids for image in images_in(name, outputs.get(name))]


class StoredImages(NamedTuple):
    """The images of a cell that agents get, and the number of those that are left out."""

    images: tuple[ToolImage, ...] = ()
    left_out: int = 0


def store_images(turn: Path, images: Iterable[CellImage]) -> dict[str, StoredImages]:
    """Store the images of an answer as files, as far as they are not too many or too large.

    Args:
        turn: The turn's directory.
        images: The images.

    Returns:
        The images by the cell's id.

    Raises:
        OSError: A file can't be written.
    """
    stored, count, room = dict[str, StoredImages](), 0, MAX_SUM
    for image in images:
        data = _decoded(image) if count < MAX_IMAGES and len(image.data) <= room else None
        of_cell = stored.get(image.cell, StoredImages())
        if data is None:
            stored[image.cell] = of_cell._replace(left_out=of_cell.left_out + 1)
            continue
        count, room = count + 1, room - len(image.data)
        new = _store(turn, image.media_type, data)
        stored[image.cell] = of_cell._replace(images=(*of_cell.images, new))
    return stored


def _decoded(image: CellImage) -> bytes | None:
    """Return the content of an image, or None if it is invalid or too large."""
    if image.media_type not in _FORMATS or len(image.data) > MAX_IMAGE:
        return None
    try:
        data = b64decode(image.data)
    except ValueError:
        return None
    return data if data.startswith(_FORMATS[image.media_type][1]) else None


def _store(turn: Path, media_type: str, data: bytes) -> ToolImage:
    name = f"{sha256(data).hexdigest()[:32]}.{_FORMATS[media_type][0]}"
    write_private(make_folder(turn / FOLDER) / name, data)
    return ToolImage(f"{turn.name}/{FOLDER}/{name}", media_type, len(data))


def with_images(cells: Iterable[Cell], stored: Mapping[str, StoredImages]) -> tuple[Cell, ...]:
    """Return cells with their stored images, and without other ones."""
    return tuple(
        replace(each, images=found.images, images_left_out=found.left_out)
        for each in cells
        for found in [stored.get(each.id, StoredImages())]
    )
