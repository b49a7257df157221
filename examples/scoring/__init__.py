"""Fraud scoring: payments from Kafka, profiles beside them, and a model behind HTTP."""
