"""Model requests: a small protocol on top of pydantic-ai, the demo model, and retries."""
