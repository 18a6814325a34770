"""The console's slash commands and what completes them."""
