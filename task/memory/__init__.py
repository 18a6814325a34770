"""Memory that a user owns: facts about the user that later conversations get, kept with the user's consent only."""
