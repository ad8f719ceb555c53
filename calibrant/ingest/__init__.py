"""Model and data in: activations out, captured as Parquet, one dataset a tensor."""
