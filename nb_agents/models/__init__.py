"""Speaking to models: one small protocol over pydantic-ai, the demo model, and retries."""
