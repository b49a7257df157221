"""Benchmarks: named workloads, rivals in the same run, the machine written beside the figures."""
