"""Some of Nexmark's questions to an auction's bids, and the same ones in SQL."""
