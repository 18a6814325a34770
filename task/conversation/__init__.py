"""Conversation data: messages, history, state and sinks. No network, no environment."""
