"""Ask a person about calls of a suspended turn, and go on with it in the next one."""
