"""Tools on one folder of the person's machine: files, commands and Python."""
