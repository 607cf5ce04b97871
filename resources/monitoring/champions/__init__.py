"""What a new champion does in service, and the rollback that follows if it does worse than it should."""
