"""The embedded model: a process that runs its weights, and the door local Core has to it."""
