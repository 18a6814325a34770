"""Before every route: who may call, from where, with how large a body, and how failures look."""
