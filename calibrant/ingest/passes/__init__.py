"""Graph passes that normalise and fuse a float model before anything is named."""
