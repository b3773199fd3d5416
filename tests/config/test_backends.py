"""Backend types: which run here, which don't and why, and whose key goes to which address."""

import pytest

from nb_agents.config.backends import BACKEND_TYPES, BackendSpec, type_at, why_unsupported

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
def test_a_type_has_the_address_and_the_variable_that_massgen_gives_it(kind: str) -> None:
    row = BACKEND_TYPES[kind]
    assert (row.base_url, row.variables[0]) == MASSGEN[kind]


@pytest.mark.parametrize("kind", MASSGEN)
def test_a_generic_backend_at_a_providers_address_takes_that_providers_key(kind: str) -> None:
    url, variable = MASSGEN[kind]
    assert type_at(backend("chatcompletion", url)).variables[0] == variable


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
def test_an_address_that_only_looks_like_a_providers_gets_no_key_of_its(url: str | None) -> None:
    assert type_at(backend("chatcompletion", url)) is BACKEND_TYPES["chatcompletion"]


def test_a_named_type_keeps_its_key_wherever_it_lives() -> None:
    assert type_at(backend("openai", MASSGEN["groq"][0])) is BACKEND_TYPES["openai"]


@pytest.mark.parametrize("kind", BACKEND_TYPES)
def test_what_runs_here_needs_no_reason(kind: str) -> None:
    assert why_unsupported(kind) == ""


@pytest.mark.parametrize(
    "kind",
    ["antigravity_cli", "ag2", "autogen"],
)
def test_massgens_programs_and_frameworks_are_named_for_what_they_are(kind: str) -> None:
    assert why_unsupported(kind).startswith(("It drives ", "It runs "))


def test_an_unknown_type_names_the_nearest_and_all() -> None:
    why = why_unsupported("opnai")
    assert why.startswith("Did you mean 'openai'? Supported: ")
    assert all(kind in why for kind in BACKEND_TYPES.keys() - {"python"})
    assert why_unsupported("telepathy").startswith("Supported: ")


def test_the_case_of_a_type_does_not_matter() -> None:
    assert backend("OpenAI").type == "openai"
