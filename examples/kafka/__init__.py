"""Kafka in and out."""
