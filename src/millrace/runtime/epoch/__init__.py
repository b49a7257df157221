"""Tasks that end with their epoch: what the driver does in one, and who hosts a task of it."""
