"""Injectors: where records come in, and what low watermark they publish."""
