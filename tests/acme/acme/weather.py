"""A tool that the extension adds."""


async def acme_weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Sunny in {city}"
