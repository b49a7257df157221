"""Files: a directory that is read as files appear in it."""
