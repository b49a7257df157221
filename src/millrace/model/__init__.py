"""What a user writes: records, streams, computations, persistent state, timers, pipelines."""
