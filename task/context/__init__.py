"""Context definitions: the documents, personas and initial prompts of conversations."""
