"""The kernel: GetWork, GetData, user code, CommitWork, for key intervals. Pure Python, no Spark."""
