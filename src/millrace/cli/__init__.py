"""The command line: the demo, and a look into a checkpoint without Spark."""
