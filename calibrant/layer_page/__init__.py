"""One page on one layer: what was decided and by whom, its ranges, its search, its worst samples and channels, and what to try."""
