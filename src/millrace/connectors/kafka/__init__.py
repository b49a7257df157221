"""Kafka: topics that are read and written."""
