"""Around a method: step sizes, exact hypergradients, checkpoints, meta-learning."""
