"""The tool that answers questions from documents."""
