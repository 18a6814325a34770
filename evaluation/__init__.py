"""How well documents are searched and cited: documents and questions of the project's own making, and their measures."""
