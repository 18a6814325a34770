"""Documents are read in processes of their own, which may run out of memory or time without harm to anybody."""
