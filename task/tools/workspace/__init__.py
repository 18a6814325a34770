"""Tools on one folder of the user's machine: files, commands and Python."""
