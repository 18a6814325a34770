"""Search in documents: chunks that know their place, hybrid search, answers whose quotes are checked."""
