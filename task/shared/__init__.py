"""What replicas share, through one Redis or the store in its place."""
