"""Sends requests to models and reports how their replies end.

Message types, their JSON, tool schemas, usage and prices come from pydantic-ai. All requests
stream, because only a streaming server notices a closed connection and stops generating. The SDKs'
retries are turned off, because a stop could not interrupt them; see `nb_agents.models.retry`
instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from nb_agents.config.uploads import UploadSpec
from nb_agents.errors import ConfigError
from nb_agents.models.message_order import normalize_messages
from nb_agents.models.tool_rules import rules_of

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, UserContent
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.models.batch import BatchRequest
    from pydantic_ai.tools import ToolDefinition

_MEDIA = ("image/", "audio/", "video/", "application/pdf")


def read_uploads(uploads: Sequence[UploadSpec]) -> list[UserContent]:
    """Read the files that a model receives with its task.

    Returns:
        The name and content of each file. Files other than media and PDFs are read as text.

    Raises:
        ConfigError: A file can't be read, or is neither media, PDF nor text.
    """
    return [part for upload in uploads for part in _read(upload)]


def _read(upload: UploadSpec) -> list[UserContent]:
    from pydantic_ai.messages import BinaryContent

    if upload.url:
        return [f"File {upload.name}:", _url_content(upload)]
    path, kind = upload.path, upload.media_type
    try:
        if kind.startswith(_MEDIA):
            return [f"File {path.name}:", BinaryContent.from_path(path)]
        return [f"File {path.name}:\n{path.read_text(encoding='utf-8')}"]
    except OSError as exc:
        raise ConfigError(f"Upload {str(path)!r} can't be read: {exc.strerror}.") from None
    except UnicodeDecodeError:
        message = f"Upload {str(path)!r} is neither an image, audio, video, PDF nor UTF-8 text."
        raise ConfigError(f"{message} Remove it.") from None


def _url_content(upload: UploadSpec) -> UserContent:
    from pydantic_ai.messages import DocumentUrl, ImageUrl, VideoUrl

    if upload.kind in ("image", "video"):
        kind = ImageUrl if upload.kind == "image" else VideoUrl
        return kind(upload.url, media_type=upload.media_type)
    return DocumentUrl(upload.url, media_type=upload.media_type or "application/octet-stream")


def with_uploads(
    messages: Sequence[ModelMessage], content: Sequence[UserContent]
) -> Sequence[ModelMessage]:
    """Return the conversation with files added to the user's first request.

    Args:
        messages: The conversation.
        content: The files, as `read_uploads` returns them.
    """
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    for index, message in enumerate(messages if content else ()):
        for number, part in enumerate(message.parts):
            if isinstance(message, ModelRequest) and isinstance(part, UserPromptPart):
                prompt = [part.content] if isinstance(part.content, str) else part.content
                parts = [*message.parts]
                parts[number] = replace(part, content=[*prompt, *content])
                return [*messages[:index], replace(message, parts=parts), *messages[index + 1 :]]
    return messages


_MAKE_IMAGES = frozenset({"image_generation", "code_execution"})
"""Built-in provider tools whose results may contain images."""

_NORMAL = frozenset({"end_turn", "eos", "eos_token", "stop_sequence"})
"""Finish reasons of complete replies that pydantic-ai does not map.

Source: the OpenAI-compatible servers of Together and TGI, and Anthropic's reasons as passed on by
gateways.
"""

MAX_REASON = 100
MAX_WORDS = 300

_FULL = "model_context_window_exceeded"  # Anthropic's
_LENGTH = frozenset({"length", "max_output_tokens", "max_tokens", "MAX_TOKENS", _FULL})


class Backend(Protocol):
    """A model that agents send requests to.

    Attributes:
        name: The model's display name.
        server: The server's address and the model, or "" if there is no server.
        calls_tools: Whether the model can call tools. If not, no tools are sent.
    """

    name: str
    server: str
    calls_tools: bool

    def stream(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Open a request; only `open_request` calls this.

        Args:
            messages: The conversation, in the order that `normalize_messages` returns.
            tools: The tools that the model may call.

        Returns:
            A context manager for pydantic-ai's stream. Iterate over it for events, then call
            `get()` for the whole response. Leaving the context closes the connection.
        """
        ...


def open_request(
    backend: Backend, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition] = ()
) -> AbstractAsyncContextManager[StreamedResponse]:
    """Open a request to a model. All requests to models go through this function.

    Args:
        backend: The model.
        messages: The conversation in chronological order. It is passed through
            `normalize_messages`.
        tools: The tools that the model may call.
    """
    return backend.stream(normalize_messages(messages), tools)


class PydanticBackend:
    """A backend for any pydantic-ai model.

    Args:
        name: The model's display name. Defaults to pydantic-ai's name.
        settings: pydantic-ai model settings, such as temperature.
        native_tools: The provider's built-in tools to enable, by their pydantic-ai names.
        files: Content that is added to the first request; see `read_uploads`.
        is_free: Whether calls to the model are free.
        context_window: The model's context window in tokens; by default the known one.
        find_window: Asks a server that drops the beginning of longer conversations without an error
            for the context window. It returns 0 if the server does not report it.
        batch: Whether requests of agents are sent through the provider's batch API.
    """

    def __init__(
        self,
        model: Model,
        name: str = "",
        settings: dict[str, Any] | None = None,
        native_tools: Sequence[str] = (),
        files: Sequence[UserContent] = (),
        is_free: bool = False,
        context_window: int | None = None,
        find_window: Callable[[], Awaitable[int]] | None = None,
        batch: bool = False,
    ) -> None:
        self.model = model
        self.is_free = is_free
        self.is_batched = batch
        self._native_tools = native_tools
        self._files = files
        self._settings: Any = {**(settings or {}), "max_retries": 0}
        self.context_window = context_window or model.context_window or 0
        self.find_window = find_window
        self.max_reply: int = self._settings.get("max_tokens") or 0
        self.file_chars = sum(len(each) for each in files if isinstance(each, str))
        self.name = name or model.model_name
        url = model.base_url
        self.server = f"{url} {model.model_name}" if url else ""
        self.tool_rules = rules_of(model)
        self.calls_tools = bool(model.profile.get("supports_tools", True))
        self.takes_images = bool(model.profile.get("supports_image_input", True))
        self._makes_images = bool(model.profile.get("supports_image_output", False))
        self._makes_images |= not _MAKE_IMAGES.isdisjoint(native_tools)

    @asynccontextmanager
    async def stream(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[StreamedResponse]:
        """Open a request; see `Backend.stream`."""
        from pydantic_ai.direct import model_request_stream

        from nb_agents.models.response_limits import closing_responses, expecting_images

        tools = tools if self.calls_tools else ()
        with expecting_images(self._makes_images):
            async with (
                closing_responses(),
                model_request_stream(
                    self.model,
                    with_uploads(messages, self._files),
                    model_request_parameters=self._parameters(tools),
                    model_settings=self._settings_with(messages, tools),
                ) as stream,
            ):
                yield stream

    def batch_request(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]
    ) -> BatchRequest:
        """Return a request for the provider's batch API. Its id is not set.

        Args:
            messages: The conversation in chronological order.
            tools: The tools that the model may call.
        """
        from pydantic_ai.models.batch import BatchRequest

        tools = tools if self.calls_tools else ()
        messages = normalize_messages(messages)
        return BatchRequest(
            custom_id="",
            messages=[*with_uploads(messages, self._files)],
            model_settings=self._settings_with(messages, tools),
            model_request_parameters=self._parameters(tools),
        )

    def _parameters(self, tools: Sequence[ToolDefinition]) -> ModelRequestParameters:
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.native_tools import NATIVE_TOOL_TYPES

        # Optional: pydantic-ai leaves a tool out if the model lacks it, instead of raising.
        native = [NATIVE_TOOL_TYPES[kind](optional=True) for kind in self._native_tools]
        return ModelRequestParameters(
            function_tools=list(tools), native_tools=native, allow_text_output=True
        )

    def _settings_with(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]
    ) -> Any:
        """Return the settings of a request that offers these tools.

        They already match `tool_choice`. Named tools are forced only in the first reply of a round,
        because otherwise the round could never end. After that, and with "required", a tool call is
        required only if one of the tools ends the round. Otherwise the model must be able to finish
        with text.
        """
        settings = {name: each for name, each in self._settings.items() if name != "tool_choice"}
        choice = self._settings.get("tool_choice")
        own = [tool.name for tool in tools if tool.kind != "output"]
        if isinstance(choice, list) and own and not any(m.kind == "response" for m in messages):
            settings["tool_choice"] = own
        elif choice not in (None, "auto", "none") and len(own) < len(tools):
            settings["tool_choice"] = "required"
        return settings


class BrokenReplyError(Exception):
    """Raised when a complete reply is unusable. The call may be retried."""


class BatchEndedError(Exception):
    """Raised when a batch doesn't have the result of a request. The call is not retried."""


class ReplyEnding(NamedTuple):
    """How a reply ended.

    Attributes:
        kind: Whether the reply is complete, cut off by a token limit or its server, refused by the
            model or a filter, or broken in a way that a retry may fix.
        reason: The provider's finish reason, such as "length" or "SAFETY".
        words: The text of the refusal, if any.
    """

    kind: Literal["whole", "cut", "refused", "broken"]
    reason: str = ""
    words: str = ""

    @property
    def by(self) -> str:
        """Where or why the reply was cut off, phrased to follow "was cut off"."""
        if self.reason == _FULL:
            return "at the end of the model's context window"
        if self.reason in _LENGTH:
            return "at its token limit (max_tokens)"
        return f"by its server ({self.reason})"


def ending_of(response: ModelResponse) -> ReplyEnding:
    """Return how a reply ended.

    A reply without a finish reason counts as complete, because some servers send none. So does a
    reply that its provider paused. A reply with an unknown reason counts as cut off.

    Args:
        response: The complete response.
    """
    details = response.provider_details or {}
    raw_reason = details.get("finish_reason") or details.get("block_reason") or ""
    reason = str(raw_reason)[:MAX_REASON]
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
