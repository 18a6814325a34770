"""Context definitions: the documents, personas and first words that a conversation starts with."""
