"""What replicas share: one Redis with limits, listings, documents and listeners, or the store in its place."""
