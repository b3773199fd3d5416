"""An extension by another distribution, which `tests.test_third_party` installs."""

from nb_agents.extend import Extension

EXTENSION = Extension(
    name="acme",
    backend_types={"acme_echo": "acme.echo:ECHO"},
    runner_types={"acme_echo": "acme.echo:ECHO_RUNNER"},
    tools={"acme_weather": "acme.weather:acme_weather"},
    verbs={"mood": "acme.verb:MOOD"},
    commands={"acme": "acme.verb:HELLO"},
    events={"mood_changed": "acme.mood:MoodChanged"},
    cards={"mood": "acme.card:mood_card"},
    work_kinds={"acme_prompts": "acme.prompts:PROMPTS"},
)
