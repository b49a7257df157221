"""The compiler: from a declared pipeline to the checked, numbered plan that executors use."""
