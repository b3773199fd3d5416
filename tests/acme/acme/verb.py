"""A verb of cells, the command line and the REST API, and a command."""

from nb_agents.extend import Caller, Command, Parameter, Reply, Run, Verb


def mood(run: Run, caller: Caller, *, loud: bool = False) -> Reply:
    """Show the moods of a turn's agents."""
    moods = run.view.extension_state.get("acme", {})
    text = ", ".join(f"{agent}: {mood}" for agent, mood in moods.items())
    return Reply(text.upper() if loud else text, dict(moods))


_LOUD = Parameter("loud", "use capital letters", False, is_option=True)
MOOD = Verb("mood", mood, "turn", (_LOUD,), route="mood")


def hello(name: str) -> None:
    """Greet somebody."""
    print(f"Hello {name}")


HELLO = Command(hello, (Parameter("name", "who is greeted", "you"),))
