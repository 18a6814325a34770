"""The web page and the Markdown it shows."""
