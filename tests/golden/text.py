"""Formats values as text that is readable in a diff and the same on every machine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

__all__ = ["plain", "to_text"]

WIDTH = 240


def plain(value: Any) -> Any:
    """Return a value as JSON data. Fields of dataclasses that equal their default are left out."""
    match value:
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case _ if dataclasses.is_dataclass(value):
            fields = dataclasses.fields(value)
            known = {f.name: getattr(value, f.name) for f in fields}
            return {f.name: plain(known[f.name]) for f in fields if known[f.name] != _default(f)}
        case tuple() if hasattr(value, "_asdict"):
            return plain(value._asdict())
        case tuple() | list():
            return [plain(each) for each in value]
        case set() | frozenset():
            return sorted(map(str, value))
        case Path():
            return str(value)
        case BaseModel():
            return value.model_dump_json()
    return value


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def to_text(value: Any, indent: str = "") -> str:
    """Return JSON with a line for each value that has little in it."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(flat) <= WIDTH or not isinstance(value, dict | list):
        return flat
    deeper = f"{indent} "
    if isinstance(value, dict):
        inner = [
            f"{json.dumps(k, ensure_ascii=False)}: {to_text(v, deeper)}" for k, v in value.items()
        ]
        first, last = "{", "}"
    else:
        inner = [to_text(each, deeper) for each in value]
        first, last = "[", "]"
    return f"{first}\n{deeper}" + f",\n{deeper}".join(inner) + f"\n{indent}{last}"
