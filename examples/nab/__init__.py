"""The Numenta Anomaly Benchmark on Millrace: see docs/anomalies.md."""
