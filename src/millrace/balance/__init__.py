"""Balance: what key intervals cost, and how they are split, merged and moved by it."""
