"""Change: what a checkpoint knows a pipeline by, and what becomes of it under another one."""
