"""Statistics to scales and offsets: IFMR, HFMG, ARQ, DMQ and the plan that chooses among them."""
