"""Tools that read the files of a conversation."""
