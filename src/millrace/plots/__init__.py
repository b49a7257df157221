"""Looking at a run: pictures of what its low watermarks did."""
