"""What a fit does to a run's statistics between the plan and the tables: balanced data, shared scales, levels, ranges.

Each module is one feature of a fit; `calibrant.calibration` joins them. Nothing here is imported by a fit that does not need it:
the joint search alone loads the graph library.
"""
