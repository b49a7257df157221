"""The epoch log: claims, manifests and completions, and what a run does with them."""
