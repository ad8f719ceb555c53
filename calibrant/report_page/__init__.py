"""A run as one HTML file that works offline: summary, ranked layers, and one sheet a layer with its charts."""
