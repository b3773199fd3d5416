"""The keys of a backend that are parameters of its model's requests.

Each is annotated with the setting of pydantic-ai that it becomes, per wire format. One that a
format does not have is not sent, and a check and a start list it; where it restricts, the team does
not start.

Source: MassGen 0.1.97, `api_params_handler/` and `backend/inference.py` (which keys go to whom);
the settings are those of pydantic-ai's `ModelSettings` and of its models' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, JsonValue, SecretStr

from nb_agents.config.faults import specs_in
from nb_agents.config.spec import Count, Spec, Texts, as_text

WireFormat = Literal["openai chat", "openai responses", "anthropic", "google"]
"""How a server is spoken to: OpenAI's two APIs, Anthropic's messages, Google's generateContent."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_WRITTEN_BY_US = frozenset(
    {"contents", "function_call", "functions", "generationConfig", "input", "instructions"}
    | {"messages", "model", "stream", "system", "systemInstruction", "tool_choice", "tools"}
)
"""Keys of a request's body that hold the conversation, or have a key of their own in a file."""


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


class ModelKey(NamedTuple):
    """How a key is translated.

    Attributes:
        settings: For each wire format that has it, the setting of pydantic-ai, with dots for what
            stands within one.
        words: For a wire format with other words for its values, those; others can't be sent.
        restricts: What the key restricts, as the object of "restricts"; "" for nothing.
        shapes: For a wire format that has its value in another shape, what makes that.
    """

    settings: Mapping[WireFormat, str]
    words: Mapping[WireFormat, Mapping[Any, Any]] = {}
    restricts: str = ""
    shapes: Mapping[WireFormat, Callable[[Any], Any]] = {}


_ALL: tuple[WireFormat, ...] = ("openai chat", "openai responses", "anthropic", "google")
_OPENAI: tuple[WireFormat, ...] = ("openai chat", "openai responses")


def _sent(setting: str, *formats: WireFormat, restricts: str = "") -> ModelKey:
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
_STOP = _sent("stop_sequences", "openai chat", "anthropic", "google")
_MAX_TOKENS = _sent("max_tokens", *_ALL)
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
_THOUGHTS_GIVEN = _sent("google_thinking_config.include_thoughts", "google")
# Not `openai_text_verbosity`: the SDK lets `extra_body.text` replace the whole of what that writes.
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
    """Return a response format as the Responses API has it: a schema's parts stand beside its type.

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
    """How a model reasons, in OpenAI's and OpenRouter's words.

    Attributes:
        effort: How much.
        summary: Which account of it is given.
        max_tokens: OpenRouter's limit of it.
        enabled: OpenRouter's switch.
        exclude: OpenRouter's: whether the thoughts are left out of the reply.
    """

    effort: Annotated[Effort | None, _EFFORT] = None
    summary: Annotated[
        Literal["auto", "concise", "detailed"] | None,
        _sent("openai_reasoning_summary", "openai responses"),
    ] = None
    max_tokens: Annotated[Count | None, ModelKey({}, restricts=_THOUGHTS)] = None
    enabled: bool | None = None
    exclude: bool | None = None


class Thinking(Spec):
    """How a model thinks, in Anthropic's and Google's words.

    Attributes:
        type: Whether it does.
        budget_tokens: Anthropic's limit of it.
        display: Anthropic's: whether the thoughts are given.
        thinking_budget: Google's limit; -1 lets the model decide.
        thinking_level: Google's effort.
        include_thoughts: Google's: whether the thoughts are given.
    """

    type: Annotated[Literal["enabled", "disabled", "adaptive"] | None, _THINKING] = None
    budget_tokens: Annotated[Annotated[int, Field(ge=0)] | None, _BUDGET] = None
    display: Annotated[
        Literal["summarized", "omitted"] | None, _sent("anthropic_thinking.display", "anthropic")
    ] = None
    thinking_budget: Annotated[Annotated[int, Field(ge=-1)] | None, _BUDGET] = None
    thinking_level: Annotated[
        Literal["minimal", "low", "medium", "high"] | None,
        _sent("google_thinking_config.thinking_level", "google"),
    ] = None
    include_thoughts: Annotated[bool | None, _THOUGHTS_GIVEN] = None


class TextOptions(Spec):
    """Options of a model's text, with the names of OpenAI's Responses API.

    Attributes:
        verbosity: How long it is.
        format: Its JSON schema.
    """

    verbosity: Annotated[Literal["low", "medium", "high"] | None, _VERBOSITY] = None
    format: Annotated[
        dict[str, JsonValue] | None, _sent("extra_body.text.format", "openai responses")
    ] = None


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
_Body = Annotated[dict[str, JsonValue], AfterValidator(_leaves_ours)]
_HeaderValue = Annotated[SecretStr, BeforeValidator(as_text)]
_Ttl = Annotated[Literal["5m", "1h"], BeforeValidator(_as_ttl)]
_ToolChoice = Annotated[
    Literal["auto", "required", "none"] | tuple[str, ...], BeforeValidator(_as_choice)
]


class ModelKeys(Spec):
    """What a backend says of its model's requests, and what becomes of each key.

    Attributes:
        temperature, top_p, top_k, min_p, seed, frequency_penalty, presence_penalty,
            repetition_penalty, logit_bias: How words are chosen.
        max_tokens, max_completion_tokens, max_output_tokens: How many tokens a reply may have;
            three names of one limit.
        stop, stop_sequences: Texts at which a reply ends.
        reasoning, reasoning_effort, effort: How much a model reasons.
        thinking, thinking_config, include_thoughts: How it thinks.
        text, verbosity, response_format: Options of its text.
        parallel_tool_calls: Whether a reply may have several calls.
        tool_choice: Which tools of its own it may call beside those by which it answers and votes,
            and whether a reply must call one of all these. ``none``: none of its own. A tool's
            name, or several in a list: only these, and each round begins with a call of one. Then,
            and with ``required``, each reply calls a tool, as long as tools end the agent's turn.
        service_tier: How fast, and for how much.
        user: Whom the requests are for.
        store: Whether the provider keeps them.
        truncation: Whether the provider may truncate a conversation that is too long.
        prompt_cache_key: Which requests OpenAI caches together.
        cache_control: How long Anthropic caches a prompt.
        safety_settings: Google's filters.
        betas: Anthropic's features in test.
        chat_template_kwargs, separate_reasoning: For vLLM and SGLang.
        extra_body, extra_headers: Sent besides. ``${VAR}`` in them is expanded when the model is
            made, so that a journal can keep them.
    """

    temperature: Annotated[float | None, _sent("temperature", *_ALL)] = None
    top_p: Annotated[float | None, _sent("top_p", *_ALL)] = None
    top_k: Annotated[Count | None, _sent("top_k", "anthropic", "google")] = None
    min_p: float | None = None
    seed: Annotated[int | None, _sent("seed", "openai chat", "google")] = None
    frequency_penalty: Annotated[
        _Penalty | None, _sent("frequency_penalty", "openai chat", "google")
    ] = None
    presence_penalty: Annotated[
        _Penalty | None, _sent("presence_penalty", "openai chat", "google")
    ] = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[str, int] | None, _sent("logit_bias", "openai chat")] = None
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
    # Where it can't be sent it is kept all the same: calls are made one after the other.
    parallel_tool_calls: Annotated[
        bool | None, _sent("parallel_tool_calls", *_OPENAI, "anthropic")
    ] = None
    tool_choice: Annotated[
        _ToolChoice | None, _sent("tool_choice", *_ALL, restricts="which tools agents may call")
    ] = None
    service_tier: Annotated[str | None, _SERVICE_TIER] = None
    user: Annotated[str | None, _USER] = None
    store: Annotated[bool | None, _sent("openai_store", *_OPENAI)] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None, _sent("openai_truncation", "openai responses")
    ] = None
    prompt_cache_key: Annotated[str | None, _sent("openai_prompt_cache_key", *_OPENAI)] = None
    cache_control: Annotated[_Ttl | None, _sent("cache", "anthropic")] = None
    safety_settings: Annotated[
        tuple[SafetySetting, ...] | None,
        _sent("google_safety_settings", "google", restricts="what a model may write"),
    ] = None
    betas: Annotated[Texts | None, _sent("anthropic_betas", "anthropic")] = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    separate_reasoning: bool | None = None
    extra_body: Annotated[_Body | None, _sent("extra_body", *_OPENAI, "anthropic")] = Field(
        default=None, repr=False
    )
    extra_headers: Annotated[dict[str, _HeaderValue] | None, _sent("extra_headers", *_ALL)] = None


def _rows(spec: type[Spec], prefix: str = "") -> Iterator[tuple[str, ModelKey]]:
    inner = specs_in(spec)
    for name, field in spec.model_fields.items():
        row = next((each for each in field.metadata if isinstance(each, ModelKey)), None)
        if row is None and name in inner:
            yield from _rows(inner[name][0], f"{name}.")
        else:
            yield f"{prefix}{name}", row or ModelKey({})


MODEL_KEYS: Mapping[str, ModelKey] = dict(_rows(ModelKeys))
"""How each key is translated; dots separate nested keys."""


class Assignment(NamedTuple):
    """The translation of a given key.

    Attributes:
        key: The key; dots separate nested keys.
        setting: The setting that it becomes, with dots; "" when it is not sent.
        value: The setting's value.
    """

    key: str
    setting: str
    value: Any


def assignments(
    keys: ModelKeys, format: WireFormat | None, body_keys: frozenset[str] = frozenset()
) -> Iterator[Assignment]:
    """Yield the translation of each given key.

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
