"""Outputs of cells, and variables of the kernel, as text for models. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nb_agents.events import ToolImage

MAX_OUTPUT = 4_000
"""Maximum number of characters of a cell's outputs, as in js/src/cell-outputs.ts."""
MAX_OUTPUTS = 20_000
"""Maximum number of characters of all outputs that answer a request, as in cell-outputs.ts."""
MAX_VARIABLES = 50
"""Maximum number of variables that are listed."""

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_ARRAYS = frozenset({"numpy", "pandas", "polars", "pyarrow", "torch", "xarray", "jax", "scipy"})
_SIZED = (str, bytes, list, tuple, dict, set, frozenset)


def output_text(outputs: object) -> str:
    """Return the end of a cell's outputs as text. Outputs that are not text are only named.

    Args:
        outputs: The outputs of the cell's JSON, which may be anything.
    """
    listed = outputs if isinstance(outputs, list) else []
    texts = [_text_of(each) for each in listed if isinstance(each, dict)]
    return last_chars("\n".join(filter(None, texts)), MAX_OUTPUT)


def _text_of(output: Mapping[str, Any]) -> str:
    if output.get("output_type") == "error":
        traceback = output.get("traceback")
        message = f"{output.get('ename')}: {output.get('evalue')}"
        lines = traceback if isinstance(traceback, list) and traceback else [message]
        return plain("\n".join(map(str, lines)))
    if output.get("output_type") == "stream":
        return plain(_joined(output.get("text")))
    data = output.get("data")
    if not isinstance(data, dict):
        return ""
    named = [f"[{kind}]" for kind in data if kind.startswith(("image/", "video/", "audio/"))]
    return "\n".join(filter(None, [plain(_joined(data.get("text/plain"))), *named]))


def _joined(value: object) -> str:
    return "".join(map(str, value)) if isinstance(value, list) else str(value or "")


def plain(text: str) -> str:
    """Return text without terminal codes and other control characters."""
    return _CONTROL.sub("", text.replace("\r\n", "\n")).rstrip()


def last_chars(text: str, limit: int) -> str:
    r"""Return the end of a text, with a note on what was left out.

    Example:
        >>> last_chars("abcdef", 2)
        '[4 characters left out]\nef'
    """
    if len(text) <= limit:
        return text
    kept = text[len(text) - limit :]
    return f"[{len(text) - limit} characters left out]\n{kept}".rstrip("\n")


def quoted(text: str) -> str:
    """Return text with a sign before each line, so that it can't pass for a heading."""
    return "\n".join(f"> {line}" for line in text.splitlines())


def images_text(images: Sequence[ToolImage], left_out: int) -> str:
    """Return a line for a model that names images, or "".

    Example:
        >>> images_text([ToolImage("turn_1/cell_images/a.png", "image/png", 900)], 1)
        'image/png (900 bytes); left out as too many, too large or of another format: 1'
    """
    parts = [f"{each.media_type} ({each.size} bytes)" for each in images]
    if left_out:
        parts.append(f"left out as too many, too large or of another format: {left_out}")
    return "; ".join(parts)


def variables_text(namespace: Mapping[str, object]) -> str:
    """Return the names, types and shapes of a user's variables, or "" if there are none.

    Only the shape of an array is read, and only of the classes of known libraries.

    Args:
        namespace: The variables by name.
    """
    described = [*_described(namespace.items())]
    more = len(described) - MAX_VARIABLES
    described = described[:MAX_VARIABLES] + ([f"({more} more)"] if more > 0 else [])
    return f"Variables: {'; '.join(described)}" if described else ""


def _described(items: Iterable[tuple[str, object]]) -> Iterator[str]:
    module = type(re)
    for name, value in items:
        kind = type(value)
        if name.startswith("_") or name in _OF_IPYTHON or kind is module or callable(value):
            continue
        yield f"{name[:60]}: {kind.__name__[:60]}{_shape(value)}"


_OF_IPYTHON = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})


def _shape(value: object) -> str:
    kind = type(value)
    if kind in _SIZED:
        return f" of {len(value)}"  # type: ignore[arg-type]
    if kind.__module__.partition(".")[0] not in _ARRAYS:
        return ""
    try:
        shape = [int(each) for each in value.shape]  # type: ignore[attr-defined]
    except Exception:  # an array without a shape, such as one that is not computed yet
        return ""
    return f" of shape ({', '.join(map(str, shape))})"
