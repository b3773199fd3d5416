"""The keys of a backend that are parameters of model requests.

Each key is annotated with the pydantic-ai setting that it becomes in each wire format. A key that a
format does not have is not sent, which is reported by a check and at the start. If such a key is a
restriction, the team does not start.

Source: MassGen 0.1.97, `api_params_handler/` and `backend/inference.py` (which provider gets which
keys); pydantic-ai's `ModelSettings` and the settings of its model classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, JsonValue, SecretStr

from nb_agents.config.faults import specs_in
from nb_agents.config.spec import Count, Spec, Texts, as_text

WireFormat = Literal["openai chat", "openai responses", "anthropic", "google"]
"""The API of a server: OpenAI's two APIs, Anthropic's Messages, or Google's generateContent."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_WRITTEN_BY_US = frozenset(
    {"contents", "function_call", "functions", "generationConfig", "input", "instructions"}
    | {"messages", "model", "stream", "system", "systemInstruction", "tool_choice", "tools"}
)
"""Keys of a request's body that contain the conversation or have their own key in a file."""


def _without_our_keys(body: dict[str, Any]) -> dict[str, Any]:
    if reserved := sorted(_WRITTEN_BY_US & body.keys()):
        raise ValueError(f"`{reserved[0]}` can't be overridden; remove it")
    return body


def _as_choice(value: Any) -> Any:
    """Return a `tool_choice` in OpenAI's or Anthropic's form as a keyword or a tuple of names."""
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
    raise ValueError("write `required`, `none`, or a list of tool names such as [NAME]")


class ModelKey(NamedTuple):
    """How a key is translated into settings of model requests.

    Attributes:
        settings: The pydantic-ai setting for each wire format that has the key. Dots separate
            nested settings.
        words: The values to send in wire formats that use different ones. Other values can't be
            sent.
        restricts: What the key restricts, phrased to follow "restricts", or "".
        shapes: Functions that convert the value for wire formats with a different structure.
    """

    settings: Mapping[WireFormat, str]
    words: Mapping[WireFormat, Mapping[Any, Any]] = {}
    restricts: str = ""
    shapes: Mapping[WireFormat, Callable[[Any], Any]] = {}


_ALL: tuple[WireFormat, ...] = ("openai chat", "openai responses", "anthropic", "google")
_OPENAI: tuple[WireFormat, ...] = ("openai chat", "openai responses")


def _in_request(setting: str, *formats: WireFormat, restricts: str = "") -> ModelKey:
    return ModelKey(dict.fromkeys(formats, setting), restricts=restricts)


def _each(*words: str) -> dict[Any, Any]:
    return dict(zip(words, words, strict=True))


_EFFORT = ModelKey(
    {
        **dict.fromkeys(_OPENAI, "openai_reasoning_effort"),
        "anthropic": "anthropic_effort",
        "google": "thinking",
    },
    {
        "anthropic": _each("low", "medium", "high", "xhigh", "max"),
        "google": {"none": False, **_each("minimal", "low", "medium", "high", "xhigh", "max")},
    },
)
_STOP = _in_request("stop_sequences", "openai chat", "anthropic", "google")
_MAX_TOKENS = _in_request("max_tokens", *_ALL)
_THINKING = ModelKey(
    {"anthropic": "anthropic_thinking.type", "google": "google_thinking_config"},
    {
        "google": {
            "enabled": {"include_thoughts": True},
            "adaptive": {"include_thoughts": True},
            "disabled": {"thinking_budget": 0},
        }
    },
)
_THOUGHTS = "how much a model thinks"
_BUDGET = ModelKey(
    {
        "anthropic": "anthropic_thinking.budget_tokens",
        "google": "google_thinking_config.thinking_budget",
    },
    restricts=_THOUGHTS,
)
_THOUGHTS_GIVEN = _in_request("google_thinking_config.include_thoughts", "google")
# Not `openai_text_verbosity`: in the SDK, `extra_body.text` would overwrite it.
_VERBOSITY = ModelKey(
    {"openai chat": "openai_text_verbosity", "openai responses": "extra_body.text.verbosity"}
)
_SERVICE_TIER = ModelKey(
    {
        **dict.fromkeys(_OPENAI, "openai_service_tier"),
        "anthropic": "anthropic_service_tier",
        "google": "service_tier",
    },
    {
        "anthropic": _each("auto", "standard_only"),
        "google": {"standard": "default", **_each("default", "flex", "priority")},
    },
)


def _text_format(value: dict[str, Any]) -> dict[str, Any]:
    """Convert a response format for the Responses API, which puts the schema next to the type.

    Source: https://platform.openai.com/docs/guides/migrate-to-responses
    """
    schema = value.get("json_schema")
    return {"type": value.get("type"), **schema} if isinstance(schema, dict) else value


_RESPONSE_FORMAT = ModelKey(
    {"openai chat": "extra_body.response_format", "openai responses": "extra_body.text.format"},
    shapes={"openai responses": _text_format},
)
_USER = ModelKey(
    {**dict.fromkeys(_OPENAI, "openai_user"), "anthropic": "anthropic_metadata.user_id"}
)


class Reasoning(Spec):
    """How a model reasons, with the keys of OpenAI and OpenRouter.

    Attributes:
        effort: How much the model reasons.
        summary: The level of detail of the reasoning summary in the reply.
        max_tokens: OpenRouter: the maximum number of reasoning tokens.
        enabled: OpenRouter: whether the model reasons.
        exclude: OpenRouter: whether the reply leaves out the reasoning.
    """

    effort: Annotated[Effort | None, _EFFORT] = None
    summary: Annotated[
        Literal["auto", "concise", "detailed"] | None,
        _in_request("openai_reasoning_summary", "openai responses"),
    ] = None
    max_tokens: Annotated[Count | None, ModelKey({}, restricts=_THOUGHTS)] = None
    enabled: bool | None = None
    exclude: bool | None = None


class Thinking(Spec):
    """How a model thinks, with the keys of Anthropic and Google.

    Attributes:
        type: Whether the model thinks.
        budget_tokens: Anthropic: the maximum number of thinking tokens.
        display: Anthropic: whether the reply has a summary of the thoughts.
        thinking_budget: Google: the maximum number of thinking tokens. -1 lets the model decide.
        thinking_level: Google: how much the model thinks.
        include_thoughts: Google: whether the reply contains the thoughts.
    """

    type: Annotated[Literal["enabled", "disabled", "adaptive"] | None, _THINKING] = None
    budget_tokens: Annotated[Annotated[int, Field(ge=0)] | None, _BUDGET] = None
    display: Annotated[
        Literal["summarized", "omitted"] | None,
        _in_request("anthropic_thinking.display", "anthropic"),
    ] = None
    thinking_budget: Annotated[Annotated[int, Field(ge=-1)] | None, _BUDGET] = None
    thinking_level: Annotated[
        Literal["minimal", "low", "medium", "high"] | None,
        _in_request("google_thinking_config.thinking_level", "google"),
    ] = None
    include_thoughts: Annotated[bool | None, _THOUGHTS_GIVEN] = None


class TextOptions(Spec):
    """Options for a model's text output, with the keys of OpenAI's Responses API.

    Attributes:
        verbosity: How detailed the output is.
        format: The output format, such as a JSON schema.
    """

    verbosity: Annotated[Literal["low", "medium", "high"] | None, _VERBOSITY] = None
    format: Annotated[
        dict[str, JsonValue] | None, _in_request("extra_body.text.format", "openai responses")
    ] = None


class SafetySetting(Spec):
    """One of Google's safety filters.

    Attributes:
        category: The kind of harm that the filter blocks.
        threshold: The level at which the filter blocks.
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
_Body = Annotated[dict[str, JsonValue], AfterValidator(_without_our_keys)]
_HeaderValue = Annotated[SecretStr, BeforeValidator(as_text)]
_Ttl = Annotated[Literal["5m", "1h"], BeforeValidator(_as_ttl)]
_ToolChoice = Annotated[
    Literal["auto", "required", "none"] | tuple[str, ...], BeforeValidator(_as_choice)
]


class ModelKeys(Spec):
    """The keys of a backend that configure the requests to its model.

    Attributes:
        temperature, top_p, top_k, min_p, seed: Sampling parameters.
        frequency_penalty, presence_penalty, repetition_penalty, logit_bias: Sampling parameters.
        max_tokens, max_completion_tokens, max_output_tokens: The maximum number of tokens in a
            reply. The three keys mean the same.
        stop, stop_sequences: Strings at which a reply ends.
        reasoning, reasoning_effort, effort: How much the model reasons.
        thinking, thinking_config, include_thoughts: How the model thinks.
        text, verbosity, response_format: Options for the model's text output.
        parallel_tool_calls: Whether a reply may contain several tool calls.
        tool_choice: Which tools the agent may call in addition to its decision tools, such as
            ``vote``. ``none`` means no others. The name of a tool or a list of names means only
            these, and each round begins with a call to one of them. With names and with
            ``required``, each reply must call a tool, as long as the agent ends its round with a
            tool.
        service_tier: The provider's service tier, a trade-off between speed and price.
        user: An identifier of the end user, for the provider.
        store: Whether the provider stores the requests.
        truncation: Whether the provider may truncate a conversation that is too long.
        prompt_cache_key: A key for OpenAI's prompt cache.
        cache_control: How long Anthropic caches a prompt.
        safety_settings: Google's safety filters.
        betas: Anthropic's beta features.
        chat_template_kwargs, separate_reasoning: Options of vLLM and SGLang.
        extra_body, extra_headers: Additional content of each request. ``${VAR}`` in them is
            expanded when the model is created, so the journal does not contain its value.
    """

    temperature: Annotated[float | None, _in_request("temperature", *_ALL)] = None
    top_p: Annotated[float | None, _in_request("top_p", *_ALL)] = None
    top_k: Annotated[Count | None, _in_request("top_k", "anthropic", "google")] = None
    min_p: float | None = None
    seed: Annotated[int | None, _in_request("seed", "openai chat", "google")] = None
    frequency_penalty: Annotated[
        _Penalty | None, _in_request("frequency_penalty", "openai chat", "google")
    ] = None
    presence_penalty: Annotated[
        _Penalty | None, _in_request("presence_penalty", "openai chat", "google")
    ] = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[str, int] | None, _in_request("logit_bias", "openai chat")] = None
    max_tokens: Annotated[int | None, _MAX_TOKENS] = None
    max_completion_tokens: Annotated[int | None, _MAX_TOKENS] = None
    max_output_tokens: Annotated[int | None, _MAX_TOKENS] = None
    stop: Annotated[Texts | None, _STOP] = None
    stop_sequences: Annotated[Texts | None, _STOP] = None
    reasoning: Reasoning | None = None
    reasoning_effort: Annotated[Effort | None, _EFFORT] = None
    effort: Annotated[Effort | None, _EFFORT] = None
    thinking: _Switch | None = None
    thinking_config: Thinking | None = None
    include_thoughts: Annotated[bool | None, _THOUGHTS_GIVEN] = None
    text: TextOptions | None = None
    verbosity: Annotated[Literal["low", "medium", "high"] | None, _VERBOSITY] = None
    response_format: Annotated[dict[str, JsonValue] | None, _RESPONSE_FORMAT] = None
    # Not a restriction where it can't be sent, because we run the calls of a reply one after
    # another.
    parallel_tool_calls: Annotated[
        bool | None, _in_request("parallel_tool_calls", *_OPENAI, "anthropic")
    ] = None
    tool_choice: Annotated[
        _ToolChoice | None,
        _in_request("tool_choice", *_ALL, restricts="which tools agents may call"),
    ] = None
    service_tier: Annotated[str | None, _SERVICE_TIER] = None
    user: Annotated[str | None, _USER] = None
    store: Annotated[bool | None, _in_request("openai_store", *_OPENAI)] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None, _in_request("openai_truncation", "openai responses")
    ] = None
    prompt_cache_key: Annotated[str | None, _in_request("openai_prompt_cache_key", *_OPENAI)] = None
    cache_control: Annotated[_Ttl | None, _in_request("cache", "anthropic")] = None
    safety_settings: Annotated[
        tuple[SafetySetting, ...] | None,
        _in_request("google_safety_settings", "google", restricts="what a model may write"),
    ] = None
    betas: Annotated[Texts | None, _in_request("anthropic_betas", "anthropic")] = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    separate_reasoning: bool | None = None
    extra_body: Annotated[_Body | None, _in_request("extra_body", *_OPENAI, "anthropic")] = Field(
        default=None, repr=False
    )
    extra_headers: Annotated[
        dict[str, _HeaderValue] | None, _in_request("extra_headers", *_ALL)
    ] = None


def _rows(spec: type[Spec], prefix: str = "") -> Iterator[tuple[str, ModelKey]]:
    inner = specs_in(spec)
    for name, field in spec.model_fields.items():
        row = next((each for each in field.metadata if isinstance(each, ModelKey)), None)
        if row is None and name in inner:
            yield from _rows(inner[name][0], f"{name}.")
        else:
            yield f"{prefix}{name}", row or ModelKey({})


MODEL_KEYS: Mapping[str, ModelKey] = dict(_rows(ModelKeys))
"""How each key is translated. Dots separate nested keys."""


class Assignment(NamedTuple):
    """A key of a backend and the setting to which it is translated.

    Attributes:
        key: The key. Dots separate nested keys.
        setting: The setting. Dots separate nested settings. "" if the key is not sent.
        value: The setting's value.
    """

    key: str
    setting: str
    value: Any


def assignments(
    keys: ModelKeys, format: WireFormat | None, body_keys: frozenset[str] = frozenset()
) -> Iterator[Assignment]:
    """Yield the setting to which each key with a value is translated.

    Args:
        keys: A backend's keys.
        format: The wire format of its server, or None without a server.
        body_keys: Keys that the server accepts unchanged in a request's body.
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
    """Return a value as plain data. Secrets stay wrapped."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
