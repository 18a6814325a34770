"""What each `dial-agent` command does: the composition roots behind the command line."""
