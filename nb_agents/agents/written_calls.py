"""Recognizes tool calls that a model wrote as text because its server did not parse them.

Such text is not an answer. It is never executed either, because the model may only have quoted a
call. Text counts as a call if it contains the exact markers of a known format with the name of an
existing tool, outside code blocks. So does a reply that consists only of a call's JSON. Pure.

Source: the tool parsers of vLLM (https://docs.vllm.ai/en/latest/features/tool_calling.html) and
llama.cpp (docs/function-calling.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from contextlib import suppress

from pydantic_core import from_json

_NAME = r"(?:functions\.)?(?P<name>[\w-]+)"
_JSON = rf"""\{{\s*(?:"\w+"\s*:\s*(?:"[^"]*"\s*,|\{{)\s*){{0,3}}"name"\s*:\s*"{_NAME}\""""
"""The beginning of a call as a JSON object, with the name among its first keys."""

_MARKED = [
    # Hermes, Qwen, Granite, Llama, older Mistral: a marker, then JSON.
    rf"(?:<\|?tool_calls?\|?>|\[TOOL_CALLS?\]|<\|python_tag\|>|<functioncall>)\s*\[?\s*{_JSON}",
    rf"\[TOOL_CALLS\]\s*{_NAME}\s*(?:\[ARGS\]|\[CALL_ID\]|\{{)",  # Mistral
    rf'<function\s*(?:=|\s+name=)\s*"?{_NAME}"?\s*>',  # Llama, Qwen3-Coder
    rf'<[^<>\s]*invoke\s+name="{_NAME}"',  # Claude, MiniMax, DeepSeek
    rf"<tool_call>\s*{_NAME}\s*(?:<arg_key>|</tool_call>)",  # GLM
    rf"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?\s*{_NAME}",  # DeepSeek
    rf"<\|tool_call_begin\|>\s*{_NAME}(?::\d+)?",  # Kimi
    rf"(?:commentary|analysis|assistant)\s+to={_NAME}",  # gpt-oss
]
_MARKS = [re.compile(pattern) for pattern in _MARKED]
_BARE = re.compile(rf'\[?\s*{_JSON}\s*,\s*"(?:arguments|parameters|args|input)"')
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_WHOLE_CODE = re.compile(r"```\w*\n((?:(?!```).)*)(?:```)?", re.DOTALL)
_THOUGHTS = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)


def written_call(text: str, names: Collection[str]) -> str:
    """Return the name of the tool that a piece of text calls, or "".

    Args:
        text: A reply without tool calls. It may be cut off.
        names: The names of the existing tools.

    Example:
        >>> written_call('<tool_call>{"name": "read_file", "arguments": {}}', {"read_file"})
        'read_file'
    """
    text = _THOUGHTS.sub("", text).strip()
    if whole := _WHOLE_CODE.fullmatch(text):
        text = whole[1].strip()
    prose = _CODE.sub("", text)
    calls = [match["name"] for mark in _MARKS for match in mark.finditer(prose)]
    if (bare := _BARE.match(text)) and _is_json(text):
        calls.append(bare["name"])
    return next((name for name in calls if name in names), "")


def _is_json(text: str) -> bool:
    """Return whether a string is only JSON, possibly cut off at the end."""
    with suppress(ValueError, RecursionError):
        return json.JSONDecoder(strict=False).raw_decode(text)[1] == len(text)
    with suppress(ValueError):
        from_json(text, allow_partial=True)
        return True
    return False
