"""Nexmark: questions to people, auctions and bids, and the same ones in SQL."""
