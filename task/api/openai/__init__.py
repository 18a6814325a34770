"""OpenAI's API: chat completions, responses, models and files."""
