"""Before every route: who may call, from where, with how much, and how failures look."""
