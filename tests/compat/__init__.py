"""The OpenAI SDK against carbonq, as users have it."""
