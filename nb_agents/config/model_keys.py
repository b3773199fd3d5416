"""The keys of a backend that are parameters of its model's requests: a table.

Each key names, per wire format, the setting of pydantic-ai that it becomes. One that a format does
not have is not sent, which a check and a start tell; where it restricts, the team does not start.

Source: MassGen 0.1.97, `api_params_handler/` and `backend/inference.py` (which keys go to whom);
the settings are those of pydantic-ai's `ModelSettings` and of its models' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, JsonValue, SecretStr

from nb_agents.config.spec import Count, Spec, Texts

__all__ = [
    "Assignment",
    "MODEL_KEYS",
    "ModelKey",
    "ModelKeys",
    "Reasoning",
    "SafetySetting",
    "TextOptions",
    "Thinking",
    "WireFormat",
    "assignments",
]

WireFormat = Literal["openai chat", "openai responses", "anthropic", "google"]
"""How a server is spoken to: OpenAI's two APIs, Anthropic's messages, Google's generateContent."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_WRITTEN_BY_US = frozenset(
    {"contents", "function_call", "functions", "generationConfig", "input", "instructions"}
    | {"messages", "model", "stream", "system", "systemInstruction", "tool_choice", "tools"}
)
"""What of a request's body is the conversation, or is kept by other keys of a file."""


def _leaves_ours(body: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(_WRITTEN_BY_US & body.keys()):
        raise ValueError(f"`{taken[0]}` can't be replaced in a request; remove it from here")
    return body


def _as_choice(value: Any) -> Any:
    """Return a `tool_choice` in OpenAI's or Anthropic's form as a word or as names."""
    match value:
        case {"type": "function", "function": {"name": str(name)}}:
            return (name,)
        case {"type": "function" | "tool", "name": str(name)}:
            return (name,)
        case "any" | {"type": "any"}:
            return "required"
        case {"type": "auto" | "none" as word}:
            return word
        case list() if value:
            return tuple(value)
        case "auto" | "required" | "none" | tuple():
            return value
    raise ValueError("write `required`, `none`, or [NAME] for tools by their names")


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class Reasoning(Spec):
    """How a model reasons, in OpenAI's and OpenRouter's words.

    Attributes:
        effort: How much.
        summary: Which account of it is given.
        max_tokens: OpenRouter's limit of it.
        enabled: OpenRouter's switch.
        exclude: OpenRouter's: whether the thoughts are left out of the reply.
    """

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    max_tokens: Count | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class Thinking(Spec):
    """How a model thinks, in Anthropic's and Google's words.

    Attributes:
        type: Whether it does.
        budget_tokens: Anthropic's limit of it.
        display: Anthropic's: whether the thoughts are given.
        thinking_budget: Google's limit of it; -1 leaves it to the model.
        thinking_level: Google's effort.
        include_thoughts: Google's: whether the thoughts are given.
    """

    type: Literal["enabled", "disabled", "adaptive"] | None = None
    budget_tokens: Annotated[int, Field(ge=0)] | None = None
    display: Literal["summarized", "omitted"] | None = None
    thinking_budget: Annotated[int, Field(ge=-1)] | None = None
    thinking_level: Literal["minimal", "low", "medium", "high"] | None = None
    include_thoughts: bool | None = None


class TextOptions(Spec):
    """What a model's text is like, in the words of OpenAI's Responses API.

    Attributes:
        verbosity: How long it is.
        format: Its JSON schema.
    """

    verbosity: Literal["low", "medium", "high"] | None = None
    format: dict[str, JsonValue] | None = None


class SafetySetting(Spec):
    """One of Google's safety filters.

    Attributes:
        category: What it is about.
        threshold: From when on it blocks.
    """

    category: str
    threshold: str


def _as_thinking(value: Any) -> Any:
    return {"type": "enabled" if value else "disabled"} if isinstance(value, bool) else value


def _as_ttl(value: Any) -> Any:
    if not isinstance(value, dict) or value.get("type") != "ephemeral":
        return value
    return value.get("ttl", "5m")


_Switch = Annotated[Thinking, BeforeValidator(_as_thinking)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_HeaderValue = Annotated[SecretStr, BeforeValidator(_text)]
_Ttl = Annotated[Literal["5m", "1h"], BeforeValidator(_as_ttl)]
_ToolChoice = Annotated[
    Literal["auto", "required", "none"] | tuple[str, ...], BeforeValidator(_as_choice)
]


class ModelKeys(Spec):
    """What a backend says of its model's requests; `MODEL_KEYS` has what each becomes.

    Attributes:
        temperature, top_p, top_k, min_p, seed, frequency_penalty, presence_penalty,
            repetition_penalty, logit_bias: How words are chosen.
        max_tokens: How much a model may write; max_completion_tokens and max_output_tokens are
            other names of it.
        stop, stop_sequences: Texts at which a reply ends.
        reasoning, reasoning_effort, effort: How much a model reasons.
        thinking, thinking_config, include_thoughts: How it thinks.
        text, verbosity, response_format: What its text is like.
        parallel_tool_calls: Whether a reply may have several calls.
        tool_choice: Which tools of its own it may call beside those by which it answers and votes,
            and whether a reply must call one of all these. ``none``: none of its own. A tool's
            name, or several in a list: only these, and each round begins with a call of one. Then,
            and with ``required``, each reply calls a tool, as long as tools end the agent's turn.
        service_tier: How fast, and for how much.
        user: Whom the requests are for.
        store: Whether the provider keeps them.
        truncation: Whether the provider may leave out what is too long.
        prompt_cache_key: Which requests OpenAI caches together.
        cache_control: How long Anthropic caches a prompt.
        safety_settings: Google's filters.
        betas: Anthropic's features in test.
        chat_template_kwargs, separate_reasoning: For vLLM and SGLang.
        extra_body, extra_headers: Sent besides. ``${VAR}`` in them is expanded when the model is
            made, so that a journal can keep them.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: Count | None = None
    min_p: float | None = None
    seed: int | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, int] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    stop: Texts | None = None
    stop_sequences: Texts | None = None
    reasoning: Reasoning | None = None
    reasoning_effort: Effort | None = None
    effort: Effort | None = None
    thinking: _Switch | None = None
    thinking_config: Thinking | None = None
    include_thoughts: bool | None = None
    text: TextOptions | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    response_format: dict[str, JsonValue] | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: _ToolChoice | None = None
    service_tier: str | None = None
    user: str | None = None
    store: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    prompt_cache_key: str | None = None
    cache_control: _Ttl | None = None
    safety_settings: tuple[SafetySetting, ...] | None = None
    betas: Texts | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    separate_reasoning: bool | None = None
    extra_body: Annotated[dict[str, JsonValue], AfterValidator(_leaves_ours)] | None = Field(
        default=None, repr=False
    )
    extra_headers: dict[str, _HeaderValue] | None = None


class ModelKey(NamedTuple):
    """What becomes of a key.

    Attributes:
        settings: For each wire format that has it, the setting of pydantic-ai, with dots for what
            stands within one.
        words: For a wire format with other words for its values, those; others can't be sent.
        restricts: What it restricts, after "restricts"; "" when it does not.
        shapes: For a wire format that has its value in another shape, what makes that.
    """

    settings: Mapping[WireFormat, str]
    words: Mapping[WireFormat, Mapping[Any, Any]] = {}
    restricts: str = ""
    shapes: Mapping[WireFormat, Callable[[Any], Any]] = {}


_ALL: tuple[WireFormat, ...] = ("openai chat", "openai responses", "anthropic", "google")
_OPENAI: tuple[WireFormat, ...] = ("openai chat", "openai responses")
_GOOGLES_SWITCH = {
    "enabled": {"include_thoughts": True},
    "adaptive": {"include_thoughts": True},
    "disabled": {"thinking_budget": 0},
}
_THOUGHTS = "how much a model thinks"


def _same(setting: str, *formats: WireFormat) -> dict[WireFormat, str]:
    return dict.fromkeys(formats, setting)


_EFFORT = ModelKey(
    {
        **_same("openai_reasoning_effort", *_OPENAI),
        "anthropic": "anthropic_effort",
        "google": "thinking",
    },
    {
        "anthropic": {word: word for word in ("low", "medium", "high", "xhigh", "max")},
        "google": {
            "none": False,
            **{word: word for word in ("minimal", "low", "medium", "high", "xhigh", "max")},
        },
    },
)
_STOP = ModelKey(_same("stop_sequences", "openai chat", "anthropic", "google"))
_MAX_TOKENS = ModelKey(_same("max_tokens", *_ALL))
_BUDGET = ModelKey(
    {
        "anthropic": "anthropic_thinking.budget_tokens",
        "google": "google_thinking_config.thinking_budget",
    },
    restricts=_THOUGHTS,
)
_THOUGHTS_GIVEN = ModelKey({"google": "google_thinking_config.include_thoughts"})
# Not `openai_text_verbosity`: the SDK lets `extra_body.text` replace the whole of what that writes.
_VERBOSITY = ModelKey(
    {"openai chat": "openai_text_verbosity", "openai responses": "extra_body.text.verbosity"}
)
_THINKING = {
    "type": ModelKey(
        {"anthropic": "anthropic_thinking.type", "google": "google_thinking_config"},
        {"google": _GOOGLES_SWITCH},
    ),
    "budget_tokens": _BUDGET,
    "display": ModelKey({"anthropic": "anthropic_thinking.display"}),
    "thinking_budget": _BUDGET,
    "thinking_level": ModelKey({"google": "google_thinking_config.thinking_level"}),
    "include_thoughts": _THOUGHTS_GIVEN,
}


def _text_format(value: dict[str, Any]) -> dict[str, Any]:
    """Return a response format as the Responses API has it: a schema's parts stand beside its type.

    Source: https://platform.openai.com/docs/guides/migrate-to-responses
    """
    schema = value.get("json_schema")
    return {"type": value.get("type"), **schema} if isinstance(schema, dict) else value


MODEL_KEYS: Mapping[str, ModelKey] = {
    "temperature": ModelKey(_same("temperature", *_ALL)),
    "top_p": ModelKey(_same("top_p", *_ALL)),
    "top_k": ModelKey(_same("top_k", "anthropic", "google")),
    "min_p": ModelKey({}),
    "seed": ModelKey(_same("seed", "openai chat", "google")),
    "frequency_penalty": ModelKey(_same("frequency_penalty", "openai chat", "google")),
    "presence_penalty": ModelKey(_same("presence_penalty", "openai chat", "google")),
    "repetition_penalty": ModelKey({}),
    "logit_bias": ModelKey(_same("logit_bias", "openai chat")),
    "max_tokens": _MAX_TOKENS,
    "max_completion_tokens": _MAX_TOKENS,
    "max_output_tokens": _MAX_TOKENS,
    "stop": _STOP,
    "stop_sequences": _STOP,
    "reasoning.effort": _EFFORT,
    "reasoning.summary": ModelKey(_same("openai_reasoning_summary", "openai responses")),
    "reasoning.max_tokens": ModelKey({}, restricts=_THOUGHTS),
    "reasoning.enabled": ModelKey({}),
    "reasoning.exclude": ModelKey({}),
    "reasoning_effort": _EFFORT,
    "effort": _EFFORT,
    **{f"thinking.{name}": key for name, key in _THINKING.items()},
    **{f"thinking_config.{name}": key for name, key in _THINKING.items()},
    "include_thoughts": _THOUGHTS_GIVEN,
    "text.verbosity": _VERBOSITY,
    "text.format": ModelKey({"openai responses": "extra_body.text.format"}),
    "verbosity": _VERBOSITY,
    "response_format": ModelKey(
        {
            "openai chat": "extra_body.response_format",
            "openai responses": "extra_body.text.format",
        },
        shapes={"openai responses": _text_format},
    ),
    # Where it can't be sent it is kept all the same: calls are made one after the other.
    "parallel_tool_calls": ModelKey(_same("parallel_tool_calls", *_OPENAI, "anthropic")),
    "tool_choice": ModelKey(_same("tool_choice", *_ALL), restricts="which tools agents may call"),
    "service_tier": ModelKey(
        {
            **_same("openai_service_tier", *_OPENAI),
            "anthropic": "anthropic_service_tier",
            "google": "service_tier",
        },
        {
            "anthropic": {"auto": "auto", "standard_only": "standard_only"},
            "google": {
                "default": "default",
                "standard": "default",
                "flex": "flex",
                "priority": "priority",
            },
        },
    ),
    "user": ModelKey({**_same("openai_user", *_OPENAI), "anthropic": "anthropic_metadata.user_id"}),
    "store": ModelKey(_same("openai_store", *_OPENAI)),
    "truncation": ModelKey(_same("openai_truncation", "openai responses")),
    "prompt_cache_key": ModelKey(_same("openai_prompt_cache_key", *_OPENAI)),
    "cache_control": ModelKey(_same("cache", "anthropic")),
    "safety_settings": ModelKey(
        _same("google_safety_settings", "google"), restricts="what a model may write"
    ),
    "betas": ModelKey(_same("anthropic_betas", "anthropic")),
    "chat_template_kwargs": ModelKey({}),
    "separate_reasoning": ModelKey({}),
    "extra_body": ModelKey(_same("extra_body", *_OPENAI, "anthropic")),
    "extra_headers": ModelKey(_same("extra_headers", *_ALL)),
}
"""What becomes of each key, with dots for one within another."""


class Assignment(NamedTuple):
    """What becomes of a key that was given.

    Attributes:
        key: It, with dots for one within another.
        setting: The setting that it becomes, with dots; "" when it is not sent.
        value: What that is given.
    """

    key: str
    setting: str
    value: Any


def assignments(
    keys: ModelKeys, format: WireFormat | None, body_keys: frozenset[str] = frozenset()
) -> Iterator[Assignment]:
    """Yield what becomes of each given key.

    Args:
        keys: A backend's.
        format: How its server is spoken to; None when there is no server.
        body_keys: Keys that its server takes in the body as they are, besides its format's.
    """
    for name in ModelKeys.model_fields:
        value = getattr(keys, name)
        if value is None:
            continue
        if name in body_keys:
            yield Assignment(name, f"extra_body.{name}", _plain(value))
            continue
        for key, each in _inner(name, value):
            yield Assignment(key, *_setting(key, each, format))


def _inner(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, BaseModel):
        yield name, _plain(value)
        return
    for part in type(value).model_fields:
        if (each := getattr(value, part)) is not None:
            yield f"{name}.{part}", _plain(each)


def _setting(key: str, value: Any, format: WireFormat | None) -> tuple[str, Any]:
    row = MODEL_KEYS[key]
    setting = row.settings.get(format, "") if format else ""
    words = row.words.get(format) if format else None
    if words is None:
        shape = row.shapes.get(format) if format else None
        return setting, shape(value) if shape else value
    return (setting, words[value]) if value in words else ("", value)


def _plain(value: Any) -> Any:
    """Return a value as plain data; secrets stay wrapped."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
