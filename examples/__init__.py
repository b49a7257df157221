"""Runnable examples, installed as ``millrace_examples``."""
