"""The client of DIAL Core: files, their URLs, and the caller whose key is used."""
