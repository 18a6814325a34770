"""Measures how well documents are searched and cited, on documents and questions written for this project."""
