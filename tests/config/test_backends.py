"""Backend types: which are supported, why others are not, and which key an address gets."""

import pytest

from nb_agents.config.backends import BACKEND_TYPES, BackendSpec, matching_type, unsupported_reason

MASSGEN = {
    "grok": ("https://api.x.ai/v1", "XAI_API_KEY"),
    "zai": ("https://api.z.ai/api/paas/v4/", "ZAI_API_KEY"),
    "cerebras": ("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "together": ("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "fireworks": ("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "groq": ("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "moonshot": ("https://api.moonshot.cn/v1", "MOONSHOT_API_KEY"),
    "nvidia_nim": ("https://integrate.api.nvidia.com/v1", "NGC_API_KEY"),
    "nebius": ("https://api.studio.nebius.ai/v1", "NEBIUS_API_KEY"),
    "poe": ("https://api.poe.com/v1", "POE_API_KEY"),
    "qwen": ("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "QWEN_API_KEY"),
}


def backend(kind: str, base_url: str | None = None) -> BackendSpec:
    return BackendSpec(type=kind, model="m", base_url=base_url)


@pytest.mark.parametrize("kind", MASSGEN)
def test_type_has_massgens_address_and_variable(kind: str) -> None:
    row = BACKEND_TYPES[kind]
    assert (row.base_url, row.variables[0]) == MASSGEN[kind]


@pytest.mark.parametrize("kind", MASSGEN)
def test_generic_backend_uses_the_key_of_its_addresss_provider(kind: str) -> None:
    url, variable = MASSGEN[kind]
    assert matching_type(backend("chatcompletion", url)).variables[0] == variable


@pytest.mark.parametrize(
    "url",
    [
        None,
        "http://localhost:1/v1",
        "https://groq.com.example/v1",
        "https://notgroq.com/v1",
        "https://example/groq.com",
        "https://groq.com@example/v1",
        "http://[::1",
        "groq.com",
    ],
)
def test_lookalike_address_does_not_get_a_providers_key(url: str | None) -> None:
    assert matching_type(backend("chatcompletion", url)) is BACKEND_TYPES["chatcompletion"]


def test_named_type_uses_its_key_at_any_address() -> None:
    assert matching_type(backend("openai", MASSGEN["groq"][0])) is BACKEND_TYPES["openai"]


@pytest.mark.parametrize("kind", BACKEND_TYPES)
def test_supported_type_has_no_unsupported_reason(kind: str) -> None:
    assert unsupported_reason(kind) == ""


@pytest.mark.parametrize(
    "kind",
    ["antigravity_cli", "ag2", "autogen"],
)
def test_unsupported_massgen_type_has_a_description(kind: str) -> None:
    assert unsupported_reason(kind).startswith("It runs ")


def test_unknown_type_error_lists_nearest_and_all_types() -> None:
    why = unsupported_reason("opnai")
    assert why.startswith("Did you mean 'openai'? Supported: ")
    assert all(kind in why for kind in BACKEND_TYPES.keys() - {"python"})
    assert unsupported_reason("telepathy").startswith("Supported: ")


def test_backend_type_is_case_insensitive() -> None:
    assert backend("OpenAI").type == "openai"
