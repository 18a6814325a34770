"""How well documents are searched and cited, on documents and questions of the project's own making."""
