"""Requests to a model: a stream of pydantic-ai events, and how the reply ended.

The message types, their JSON, tool schemas, usage and prices are pydantic-ai's. Always streaming:
a server notices a lost client only then, so a stop ends the spending. The SDKs' own retries are
off, because each would be a model call that no stop can see; `nb_agents.models.retry` has ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from nb_agents.config.uploads import UploadSpec
from nb_agents.errors import ConfigError
from nb_agents.events import Usage

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, UserContent
    from pydantic_ai.models import Model, StreamedResponse
    from pydantic_ai.tools import ToolDefinition

_MEDIA = ("image/", "audio/", "video/", "application/pdf")


def read_uploads(uploads: Sequence[UploadSpec]) -> list[UserContent]:
    """Read the files that an agent is shown.

    Args:
        uploads: The files.

    Returns:
        The name and content of each; a file that is neither media nor a PDF is sent as text.

    Raises:
        ConfigError: A file can't be read, or is not text.
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
    """Return the conversation with files added to the person's first request.

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


_MAKE_IMAGES = frozenset({"image_generation", "code_execution"})
"""Tools of providers whose replies may hold images."""

_NORMAL = frozenset({"end_turn", "eos", "eos_token", "stop_sequence"})
"""Reasons that pydantic-ai has no word for, and that are a reply's own end all the same.

Source: Together's and TGI's OpenAI-like servers, and Anthropic's words behind gateways.
"""

MAX_REASON = 100
MAX_WORDS = 300

_LENGTH = frozenset(
    {"length", "max_output_tokens", "max_tokens", "MAX_TOKENS", "model_context_window_exceeded"}
)


class Backend(Protocol):
    """A model that agents send requests to.

    Attributes:
        name: The model's name, for users.
        server: Where its calls go, and to which model; "" when they go nowhere.
        calls_tools: Whether its model calls tools; one that does not is offered none.
    """

    name: str
    server: str
    calls_tools: bool

    def stream(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Open one request.

        Args:
            messages: The conversation so far, ending in a request.
            tools: What the model may call.

        Returns:
            A context manager over pydantic-ai's stream: iterate it for events, then `get()` for
            the whole response. Leaving the context closes the connection.
        """
        ...


class PydanticBackend:
    """A backend over any pydantic-ai model.

    Args:
        model: The model.
        name: Its name, for users; by default the model's own.
        settings: pydantic-ai model settings, such as temperature.
        native_tools: Tools that the provider runs, as pydantic-ai names them.
        files: Content added to the first request; see `read_uploads`.
    """

    def __init__(
        self,
        model: Model,
        name: str = "",
        settings: dict[str, Any] | None = None,
        native_tools: Sequence[str] = (),
        files: Sequence[UserContent] = (),
    ) -> None:
        self._model = model
        self._native_tools = native_tools
        self._files = files
        self._settings: Any = {**(settings or {}), "max_retries": 0}
        self.name = name or model.model_name
        url = model.base_url
        self.server = f"{url} {model.model_name}" if url else ""
        self.calls_tools = bool(model.profile.get("supports_tools", True))
        self._makes_images = bool(model.profile.get("supports_image_output", False))
        self._makes_images |= not _MAKE_IMAGES.isdisjoint(native_tools)

    @asynccontextmanager
    async def stream(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[StreamedResponse]:
        """Open one request; see `Backend.stream`."""
        from pydantic_ai.direct import model_request_stream
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.native_tools import NATIVE_TOOL_TYPES

        from nb_agents.models.response_limits import expecting_images, finishing

        tools = tools if self.calls_tools else ()
        # One that this model lacks is left out, instead of the request being refused.
        native = [NATIVE_TOOL_TYPES[kind](optional=True) for kind in self._native_tools]
        parameters = ModelRequestParameters(
            function_tools=list(tools), native_tools=native, allow_text_output=True
        )
        with expecting_images(self._makes_images):
            async with (
                finishing(),
                model_request_stream(
                    self._model,
                    with_uploads(messages, self._files),
                    model_request_parameters=parameters,
                    model_settings=self._settings_with(messages, tools),
                ) as stream,
            ):
                yield stream

    def _settings_with(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]
    ) -> Any:
        """Return the settings of a request that offers these tools.

        Which tools there are follows the choice already. So one by name makes a round's first reply
        call one of them: if each had to, no turn would ever end. Then a tool must be called where
        one ends the turn; elsewhere the model must be able to end in words.
        """
        settings = {name: each for name, each in self._settings.items() if name != "tool_choice"}
        choice = self._settings.get("tool_choice")
        own = [tool.name for tool in tools if tool.kind != "output"]
        if isinstance(choice, list) and own and not any(m.kind == "response" for m in messages):
            settings["tool_choice"] = own
        elif choice not in (None, "auto", "none") and len(own) < len(tools):
            settings["tool_choice"] = "required"
        return settings


def usage_of(response: ModelResponse) -> Usage:
    """Return the tokens and cost of a response.

    Args:
        response: A finished response.

    Returns:
        Tokens, and the cost where genai-prices (offline data) knows the model, else None.
    """
    try:
        cost: float | None = float(response.cost().total_price)
    except (LookupError, AssertionError, ValueError):
        # ValueError: the server sent no usage, as some local ones do.
        cost = None
    usage = response.usage
    return Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cost=cost)


class BrokenReplyError(Exception):
    """A reply ended without being usable; the call is retried."""


class ReplyEnding(NamedTuple):
    """How a reply ended.

    Attributes:
        kind: Whole; cut by a token limit or by its server; refused by the model or a filter; or
            broken, so that a retry may succeed.
        reason: The provider's word, such as "length" or "SAFETY".
        words: The text of a refusal, or "".
    """

    kind: Literal["whole", "cut", "refused", "broken"]
    reason: str = ""
    words: str = ""

    @property
    def by(self) -> str:
        """Where a cut reply ended, in words."""
        if self.reason in _LENGTH:
            return "at its token limit (max_tokens)"
        return f"by its server ({self.reason})"


def ending_of(response: ModelResponse) -> ReplyEnding:
    """Return how a reply ended.

    Args:
        response: The whole of it.

    Returns:
        Its ending; a pause is none, and counts as a whole. A server that gives no reason, as some
        do, and a reason that is known as an end make it whole; one that is not known makes it cut.
    """
    details = response.provider_details or {}
    given = details.get("finish_reason") or details.get("block_reason") or ""
    reason = str(given)[:MAX_REASON]
    if response.state == "suspended":
        return ReplyEnding("whole", reason)
    match response.finish_reason:
        case "content_filter":
            return ReplyEnding("refused", reason, str(details.get("refusal") or "")[:MAX_WORDS])
        case "length":
            return ReplyEnding("cut", reason if reason in _LENGTH else "length")
        case "error":
            return ReplyEnding("broken", reason or "error")
        case None if reason and reason.lower() not in _NORMAL:
            return ReplyEnding("cut", reason)
    return ReplyEnding("whole", reason)
