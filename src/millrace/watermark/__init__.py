"""Low watermarks: what pins them, by key interval, and the authority that puts them together."""
